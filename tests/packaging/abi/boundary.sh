# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# To be sourced. lib/api/c_api.cc and lib/api/odc.map determine libodc's interface, so a library of these two, compiled with
# debug information like a build, shows it in seconds.

# compile_command BUILD: that build's command for c_api.cc, without an output file.
compile_command() {
    python3 - "$1" <<'PY'
import json, re, sys
commands = json.load(open(sys.argv[1] + "/compile_commands.json"))
[command] = [one["command"] for one in commands if one["file"].endswith("/lib/api/c_api.cc")]
print(re.sub(r" -o \S+", "", command))
PY
}

# boundary COMMAND ROOT LIBRARY: builds that library of the tree at ROOT with a command for the tree in $ODC_SOURCE_DIR.
boundary() {
    (cd "$2" && eval "${1//"$ODC_SOURCE_DIR"/"$2"} -w -g -o '$3.o'") &&
        c++ -shared -Wl,-soname,libodc.so.0 -Wl,-z,nodelete "-Wl,--version-script=$2/lib/api/odc.map" "$3.o" -o "$3"
}

needs_tools() {
    local tool
    for tool in abidw abidiff python3 cc; do
        command -v $tool >/dev/null || { echo "$tool was not found (Debian: abigail-tools, python3, gcc)"; exit 77; }
    done
}

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fuzzes the decoders of what other hosts send, for a bounded time each. Exits with 77 where clang has no libFuzzer.
#
# usage: tests/fuzz/run.sh [SECONDS] (default 15)
set -u
# shellcheck source-path=SCRIPTDIR source=../harness/usage.sh
. "$(dirname "$0")/../harness/usage.sh"
takes 0 1 "$@"
cd "$(dirname "$0")/../.." || exit 1
seconds=${1:-15}
if [ ! -e "$(clang++-14 -print-file-name="libclang_rt.fuzzer-$(uname -m).a" 2>/dev/null)" ]; then
    echo "clang++-14 with libFuzzer was not found"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# fuzz NAME SOURCE...: builds NAME_fuzz.cc with these files of lib/, and those of errors, and runs it.
fuzz() {
    local name=$1 seed=${ODC_TEST_SEED:-$RANDOM}
    shift
    clang++-14 -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -I cuda -I lib -I include \
        "tests/fuzz/${name}_fuzz.cc" lib/base/{error,format}.cc "${@/#/lib/}" -lhwloc -o "$work/${name}_fuzz" || return 1
    echo "$name: seed: ODC_TEST_SEED=$seed"
    "$work/${name}_fuzz" -seed="$seed" -max_len=9000 -max_total_time="$seconds" -artifact_prefix="$work/" \
        >"$work/${name}_log" 2>&1 && tail -n 1 "$work/${name}_log" && return
    grep -v 'NEW\|REDUCE\|pulse' "$work/${name}_log" >&2
    return 1
}

# Both at the same time: most of the time is spent compiling, and each uses one core.
fuzz control_message transport/fabric/control_message.cc &
control_message=$!
status=0
fuzz peer_info bootstrap/peer_info.cc base/layout_version.cc routing/nic_address.cc topology/machine.cc topology/gpu_link.cc topology/nic.cc \
    base/settings.cc || status=1
wait "$control_message" || status=1
exit "$status"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ranks of builds with different layouts refuse each other and name both versions, when they meet by name on one host and over
# TCP. ODC_BUILD_DIR: the build with tests/cli/join and tests/cli/next_layout.
set -u

programs=${ODC_BUILD_DIR:?the build directory}/tests/cli
# shellcheck source-path=SCRIPTDIR source=../harness/shell_checks.sh
. "${ODC_SOURCE_DIR:?the folder of the sources}/tests/harness/shell_checks.sh"

ours=$(sed -n 's/^#define ODC_LAYOUT_VERSION //p' "$ODC_SOURCE_DIR/lib/base/layout_version.cc")
theirs=4000000000

# refuse NAME VARIABLE=VALUE...: rank 1 is of the other build; both ranks fail, and the error of rank WHO names both versions.
refuse() {
    local name=$1 first
    shift
    echo "$name"
    env "$@" ODC_TIMEOUT_MS=20000 ODC_RANK=0 ODC_SIZE=2 timeout 60 "$programs/join" >"$work/first" 2>&1 &
    first=$!
    expect 1 env "$@" ODC_TIMEOUT_MS=20000 ODC_RANK=1 ODC_SIZE=2 LD_LIBRARY_PATH="$programs/next_layout" "$programs/join"
    wait "$first"
    same $? 1
    for said in "$err" "$(cat "$work/first")"; do
        contains "$said" "version $ours"
        contains "$said" "version $theirs"
        contains "$said" "give all ranks the same libodc"
    done
    echo "$err"
    cat "$work/first"
}

refuse "by name" ODC_JOB="layout-$unique"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
refuse "over TCP" ODC_JOB="layout-tcp-$unique" ODC_RENDEZVOUS="127.0.0.1:$port" ODC_SECRET="a secret of this test"

[ "$failures" -eq 0 ]

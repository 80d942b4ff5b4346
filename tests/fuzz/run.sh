#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Feeds what reads other hosts' words with random bytes, for a bounded time each: run.sh [SECONDS] (15 unless given). Ends
# with 77 where clang has no libFuzzer.
set -u
cd "$(dirname "$0")/../.." || exit 1
seconds=${1:-15}
if [ ! -e "$(clang++-14 -print-file-name="libclang_rt.fuzzer-$(uname -m).a" 2>/dev/null)" ]; then
    echo "clang++-14 with libFuzzer was not found"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# fuzz NAME SOURCE...: NAME_fuzz.cc with these of lib/.
fuzz() {
    local name=$1 seed=${ODC_TEST_SEED:-$RANDOM}
    shift
    clang++-14 -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -I cuda -I lib -I include \
        "tests/fuzz/${name}_fuzz.cc" "${@/#/lib/}" -lhwloc -o "$work/${name}_fuzz" || return 1
    echo "$name: seed: ODC_TEST_SEED=$seed"
    "$work/${name}_fuzz" -seed="$seed" -max_len=9000 -max_total_time="$seconds" -artifact_prefix="$work/" \
        >"$work/${name}_words" 2>&1 && tail -n 1 "$work/${name}_words" && return
    grep -v 'NEW\|REDUCE\|pulse' "$work/${name}_words" >&2
    return 1
}

# Both at once: most of it is compiling, and neither uses more than one core.
fuzz notice transport/fabric/control_message.cc base/error.cc &
notice=$!
status=0
fuzz card bootstrap/peer_info.cc base/layout_version.cc routing/nic_address.cc topology/machine.cc topology/gpu_link.cc topology/nic.cc base/settings.cc \
    base/error.cc || status=1
wait "$notice" || status=1
exit "$status"

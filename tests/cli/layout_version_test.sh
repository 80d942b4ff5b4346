#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ranks of builds with different layouts refuse each other and name both versions, whichever way they meet: by name on one host,
# over TCP, by the program's all-gather, and by PMIx where Open MPI is. ODC_BUILD_DIR: the build with tests/cli/join and
# tests/cli/next_layout.
set -u

programs=${ODC_BUILD_DIR:?the build directory}/tests/cli
# shellcheck source-path=SCRIPTDIR source=../harness/shell_checks.sh
. "${ODC_SOURCE_DIR:?the folder of the sources}/tests/harness/shell_checks.sh"
# shellcheck source-path=SCRIPTDIR source=../harness/launchers.sh
. "$ODC_SOURCE_DIR/tests/harness/launchers.sh"

ours=$(sed -n 's/^#define ODC_LAYOUT_VERSION //p' "$ODC_SOURCE_DIR/lib/base/layout_version.cc")
theirs=4000000000
export ODC_TIMEOUT_MS=20000

# both_said NAME: what each rank said, in $work/said.RANK, names both versions.
both_said() {
    local rank version
    for rank in 0 1; do
        said=$(cat "$work/said.$rank")
        for version in "$ours" "$theirs"; do
            contains "$said" "version $version"
        done
        contains "$said" " of libodc's shared layout"
        contains "$said" "give all ranks the same libodc"
        echo "$1, rank $rank: $said"
    done
}

# refuse NAME VARIABLE=VALUE... [-- ARGUMENT OF join]: rank 1 is of the other build; both ranks fail. host_of_1: rank 1's, if it is
# on another host.
refuse() {
    local name=$1 first variables=(ODC_SIZE=2)
    shift
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        variables+=("$1")
        shift
    done
    shift $(($# > 0))
    timeout 60 env "${variables[@]}" ODC_RANK=0 "$programs/join" "$@" >"$work/said.0" 2>&1 &
    first=$!
    expect 1 env "${variables[@]}" ${host_of_1:+ODC_HOST_ID="$host_of_1"} ODC_RANK=1 LD_LIBRARY_PATH="$programs/next_layout" "$programs/join" "$@"
    echo "$err" >"$work/said.1"
    wait "$first"
    same $? 1
    both_said "$name"
}

refuse "by name" ODC_JOB="layout-$unique"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
refuse "over TCP" ODC_JOB="layout-tcp-$unique" ODC_RENDEZVOUS="127.0.0.1:$port" ODC_SECRET="a secret of this test"
mkdir "$work/meet"
refuse "by the program's all-gather" -- "$work/meet"
mkdir "$work/apart"
host_of_1=other refuse "by the program's all-gather, on two hosts" -- "$work/apart"

mpirun=$(find_launcher "Open MPI\|OpenRTE" mpirun.openmpi mpirun)
if [ -z "$mpirun" ]; then
    echo "by PMIx: skipped, mpirun is not installed"
elif ! has_pmix; then
    echo "by PMIx: skipped, this libodc was built without PMIx"
else
    # As on several hosts. Each rank ends well, since mpirun kills the others of one that does not.
    rm "$work"/said.*
    # shellcheck disable=SC2016 # the inner shell's
    expect 0 "$mpirun" -n 2 sh -c 'export OMPI_COMM_WORLD_LOCAL_SIZE=1
        [ "$OMPI_COMM_WORLD_RANK" = 0 ] || export LD_LIBRARY_PATH="$2/next_layout"
        ! "$2/join" >"$1/said.$OMPI_COMM_WORLD_RANK" 2>&1' sh "$work" "$programs"
    both_said "by PMIx"
fi

[ "$failures" -eq 0 ]

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ranks started by real launchers meet: odc run, and those of Open MPI, MPICH, Slurm and torch that are installed. ODC names the
# odc command, ODC_BUILD_DIR the build with tests/cli/join.
set -u

odc=${ODC:?the path of the odc command}
join=${ODC_BUILD_DIR:?the build directory}/tests/cli/join
# shellcheck source-path=SCRIPTDIR source=../harness/shell_checks.sh
. "${ODC_SOURCE_DIR:?the folder of the sources}/tests/harness/shell_checks.sh"
# shellcheck source-path=SCRIPTDIR source=../harness/launchers.sh
. "$ODC_SOURCE_DIR/tests/harness/launchers.sh"

export ODC_TIMEOUT_MS=30000
# Leaks of the launchers' own libraries in a rank are not this library's.
export ASAN_OPTIONS=detect_leaks=0

# check NAME RANKS STATUS FILE: each rank has joined twice and found all others.
check() {
    local name=$1 ranks=$2 status=$3 file=$4 rank sum=$(($2 * ($2 - 1) / 2))
    [ "$status" -eq 0 ] || fail "$name ended with $status: $(cat "$file")"
    for ((rank = 0; rank < ranks; rank++)); do
        [ "$(grep -c "rank $rank of $ranks: sum $sum\$" "$file")" -eq 2 ] ||
            fail "$name: rank $rank of $ranks did not join twice: $(cat "$file")"
    done
}

# joins NAME RANKS COMMAND...
joins() {
    local name=$1 ranks=$2
    shift 2
    echo "$name: $ranks ranks"
    timeout 60 "$@" >"$work/out" 2>&1
    check "$name" "$ranks" $? "$work/out"
}

# Two jobs of one launcher at the same time stay separate.
two_jobs() {
    local name=$1 first
    shift
    echo "$name: two jobs at once"
    timeout 60 "$@" >"$work/first" 2>&1 &
    first=$!
    timeout 60 "$@" >"$work/second" 2>&1
    check "$name" 2 $? "$work/second"
    wait $first
    check "$name" 2 $? "$work/first"
}

# refuses WORD COMMAND...: it fails with an error that contains WORD.
refuses() {
    local word=$1
    shift
    timeout 60 "$@" >"$work/out" 2>&1 && fail "'$*' succeeded: $(cat "$work/out")"
    grep -q -- "$word" "$work/out" || fail "'$*' does not say '$word': $(cat "$work/out")"
}

joins "odc run" 3 "$odc" run -n 3 -- "$join"
two_jobs "odc run" "$odc" run -n 2 -- "$join"

mpirun=$(find_launcher "Open MPI\|OpenRTE" mpirun.openmpi mpirun)
if [ -n "$mpirun" ]; then
    joins "Open MPI" 3 "$mpirun" -n 3 "$join"
    two_jobs "Open MPI" "$mpirun" -n 2 "$join"
    # As on several hosts: PMIx tells the ranks' hosts.
    if has_pmix; then
        joins "Open MPI, PMIx" 3 "$mpirun" -n 3 sh -c "OMPI_COMM_WORLD_LOCAL_SIZE=1 ODC_LOG=info exec '$join'"
        contains "$(cat "$work/out")" " of 3 ranks by PMIx"
    else
        echo "Open MPI, several hosts: skipped, this libodc was built without PMIx"
    fi
else
    echo "Open MPI: skipped, mpirun is not installed"
fi

mpiexec=$(find_launcher "HYDRA" mpiexec.mpich mpiexec.hydra mpiexec)
if [ -n "$mpiexec" ]; then
    joins "MPICH" 3 "$mpiexec" -n 3 "$join"
    two_jobs "MPICH" "$mpiexec" -n 2 "$join"
    refuses "ODC_RENDEZVOUS" "$mpiexec" -n 2 sh -c "MPI_LOCALNRANKS=1 exec '$join'"
else
    echo "MPICH: skipped, mpiexec is not installed"
fi

if command -v srun >/dev/null && timeout 10 sinfo >/dev/null 2>&1; then
    joins "Slurm" 2 srun -N 1 -n 2 --overcommit "$join"
else
    echo "Slurm: skipped, no srun or no cluster"
fi

if python3 -c 'import torch.distributed.run' >/dev/null 2>&1; then
    joins "torchrun" 3 python3 -m torch.distributed.run --standalone --nproc-per-node 3 --no-python "$join"
else
    echo "torchrun: skipped, python3 cannot import torch"
fi

refuses "torchrun" "$join"

[ "$failures" -eq 0 ] || exit 1

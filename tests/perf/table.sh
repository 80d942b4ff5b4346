#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Prints, as Markdown, the table of docs/performance.md: libodc on this machine compared with the machine's limits, and MPI.
#
# usage: tests/perf/table.sh BUILD_DIRECTORY [SECONDS_OF_REPLAY]
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../harness/usage.sh
. "$(dirname "$0")/../harness/usage.sh"
takes 1 2 "$@"

build=$(cd "$1" && pwd)
source=$(cd "$(dirname "$0")/../.." && pwd)
odc=$build/tools/odc
run_mpi=$build/tests/perf/peers/run_mpi_peers
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# mpi RANKS BYTES OP...: "MPI_Get 2.0, MPI_Allgather 6.5", from one run for each RANKS and BYTES.
mpi() {
    local file=$scratch/mpi-$1-$2
    if [ ! -x "$run_mpi" ]; then
        return
    fi
    if [ ! -e "$file" ]; then
        timeout 300 "$run_mpi" "$1" "$2" >"$file"
    fi
    python3 - "$file" "${@:3}" <<'PYTHON'
import json, sys
rows = {j["op"]: j["gbps"] for j in map(json.loads, open(sys.argv[1]))}
print(", ".join(f"{op} {rows[op]:.3g}" for op in sys.argv[2:]))
PYTHON
}

rows() {
    python3 "$source/tests/perf/table_rows.py" "$@"
}

# race OP TYPE RANKS BYTES TEXT BAR [MPI_OP...]
race() {
    local peers=
    if [ $# -gt 6 ]; then
        peers=$(mpi "$3" "$4" "${@:7}")
    fi
    "$odc" bench "$1" --type "$2" --ranks "$3" --bytes "$4" --json >"$scratch/json"
    rows race "$scratch/json" "$5, n = $3" "$6" "$peers"
}

sync() {
    "$odc" bench sync --ranks 2 --json >"$scratch/json"
    rows sync "$scratch/json"
}

claim() {
    "$odc" bench claim --ranks 2 --json >"$scratch/json"
    "$odc" bench claim --ranks 2 --transport fabric --json >"$scratch/between"
    rows claim "$scratch/json" "$scratch/between"
}

# replay SECONDS
replay() {
    "$odc" replay --lengths "$source/tools/cli/stdlib-lengths.txt" --model 7b --ranks 8 --minibatch 8 \
        --seconds "$1" --json >"$scratch/json"
    rows replay "$scratch/json"
}

cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
cat <<END
Measured on $(nproc) cores (${cpu:-unknown processor}) by \`tests/perf/table.sh BUILD\`; GB/s per rank.

| what | bar | reached, of the bare loop | the loop against itself | GB/s | bare loop, GB/s | MPI, GB/s |
|---|---|---|---|---|---|---|
END
for ranks in 2 4; do
    race gather f32 $ranks 67108864 "gather, 64 MiB f32" 0.95 MPI_Get MPI_Allgather
done
for ranks in 2 4; do
    race scatter-add f32 $ranks 67108864 "scatter-add, 64 MiB f32" 0.95 MPI_Accumulate MPI_Reduce_scatter_block
done
for ranks in 2 4; do
    race scatter-add bf16 $ranks 67108864 "scatter-add, 64 MiB bf16 → f32" 0.95
done
for ranks in 2 4; do
    race gather f32 $ranks 65536 "gather, 64 KiB f32" 0.7 MPI_Get MPI_Allgather
    race scatter-add f32 $ranks 65536 "scatter-add, 64 KiB f32" 0.7 MPI_Accumulate MPI_Reduce_scatter_block
    race scatter-add bf16 $ranks 65536 "scatter-add, 64 KiB bf16 → f32" 0.7
done
sync
claim
replay "${2:-90}"

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

# race OP TYPE RANKS BYTES TEXT BAR [MPI_OP...]
race() {
    local peers=
    if [ $# -gt 6 ]; then
        peers=$(mpi "$3" "$4" "${@:7}")
    fi
    "$odc" bench "$1" --type "$2" --ranks "$3" --bytes "$4" --json >"$scratch/json"
    python3 - "$scratch/json" "$5, n = $3" "$6" "$peers" <<'PYTHON'
import json, sys
j = json.load(open(sys.argv[1]))
if j["resolved"]:
    ratio = f"{j['ratio']:.3f} ({j['ratio_low']:.3f}–{j['ratio_high']:.3f})"
else:
    ratio = "not resolved"
    print(f"table.sh: {sys.argv[2]}: {j['verdict']}", file=sys.stderr)
print(f"| {sys.argv[2]} | ≥ {sys.argv[3]} | {ratio} "
      f"| {j['limit_self_ratio']:.3f} | {j['gbps']:.3g} | {j['limit_gbps']:.3g} | {sys.argv[4]} |")
PYTHON
}

sync() {
    "$odc" bench sync --ranks 2 --json >"$scratch/json"
    python3 - "$scratch/json" <<'PYTHON'
import json, sys
j = json.load(open(sys.argv[1]))
print(f"| sync, n = 2, both ready | ≤ 20 µs | {j['usec']:.2f} µs ({j['usec_low']:.2f}–{j['usec_high']:.2f}) "
      f"| | | {j['limit_usec']:.2f} µs | |")
PYTHON
}

claim() {
    "$odc" bench claim --ranks 2 --json >"$scratch/json"
    "$odc" bench claim --ranks 2 --transport fabric --json >"$scratch/between"
    python3 - "$scratch/json" "$scratch/between" <<'PYTHON'
import json, sys
j, between = (json.load(open(name)) for name in sys.argv[1:])
print(f"| claim, n = 2 | ≥ 2 million/s together | {1e-6 * j['claims_per_second']:.1f} ({1e-6 * j['claims_per_second_low']:.1f}"
      f"–{1e-6 * j['claims_per_second_high']:.1f}) | | | {1e-6 * j['limit_per_second']:.1f} million/s | |")
print(f"| claim between hosts, n = 2, loopback | ≤ 200 µs | {between['usec']:.1f} µs "
      f"({between['usec_low']:.1f}–{between['usec_high']:.1f}) | | | | |")
PYTHON
}

# replay SECONDS: the share of its own ideal of each arm that has a bar.
replay() {
    "$odc" replay --lengths "$source/tools/cli/stdlib-lengths.txt" --model 7b --ranks 8 --minibatch 8 \
        --seconds "$1" --json >"$scratch/json"
    python3 - "$scratch/json" <<'PYTHON'
import json, sys
arms = json.load(open(sys.argv[1]))["arms"]
share = lambda arm: arm["samples_per_second"] / arm["ideal_samples_per_second"]
best = next(a for a in arms if a["schedule"] == "odc" and a["policy"] == "lb-mini")
collective = [(f"collective + {a['policy']}", 0.95, a) for a in arms if a["schedule"] == "collective"]
for words, bar, arm in [("ODC + LB-Mini", 0.97, best), *collective]:
    print(f"| `odc replay`, 8 ranks × 8 samples, 7b, {words}: share of its own ideal samples/s | ≥ {bar} "
          f"| {share(arm):.3f} | | | | |")
PYTHON
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

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Prints, as Markdown, the table of docs/performance.md for minibatches between hosts of several ranks: with the node cache and
# partial sums, without them, their limits, and Open MPI's and gloo's collectives, if PYTHON (default python3) has torch. The
# hosts are network namespaces (tests/harness/hosts.sh), so it needs root.
#
# usage: [PYTHON=...] tests/perf/minibatch_table.sh BUILD_DIRECTORY [ROUNDS]
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../harness/usage.sh
. "$(dirname "$0")/../harness/usage.sh"
takes 1 2 "$@"

build=$(cd "$1" && pwd)
rounds=${2:-21}
hosts=$(cd "$(dirname "$0")/../harness" && pwd)/hosts.sh
peers=$(cd "$(dirname "$0")/peers" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# race NAME HOSTS RANKS BYTES MICROBATCHES GATHERS ROUNDS [bf16]
race() {
    timeout 900 "$hosts" "$2" -- "$hosts" ranks "$3" "$build/tests/perf/minibatch" "${@:4}" >"$scratch/$1"
}

race bytes 2 8 33554432 4 2 3 bf16
race time 2 4 67108864 4 1 "$rounds"
race limit 1 4 67108864 4 1 "$rounds"
race one 2 2 67108864 4 1 "$rounds"
timeout 300 "$hosts" 2 -- "$hosts" ranks 2 "$build/tests/perf/peers/fabric_race" move "$rounds" >"$scratch/bare" ||
    echo "minibatch_table.sh: no row of the limit with a network" >&2
RANKS_PER_HOST=2 timeout 300 "$hosts" 2 -- "$peers/mpi_hosts.sh" "$build/tests/perf/peers/mpi_peers" 67108864 7 >"$scratch/mpi" ||
    echo "minibatch_table.sh: no row of MPI" >&2
timeout 300 "$hosts" 2 -- "$hosts" ranks 4 "${PYTHON:-python3}" -W ignore "$peers/gloo_peers.py" 7 >"$scratch/gloo" ||
    echo "minibatch_table.sh: no row of gloo" >&2
cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
echo "Measured on $(nproc) cores (${cpu:-unknown processor}) by \`tests/perf/minibatch_table.sh BUILD\`: two hosts, which are
network namespaces joined by veth and a bridge; provider \`tcp;ofi_rxm\`; 4 microbatches, no compute."
python3 - "$scratch" <<'PYTHON'
import json, statistics, sys

def load(name):
    return json.load(open(f"{sys.argv[1]}/{name}"))

def row(what, bar, reached, met):
    print(f"| {what} | {bar} | {reached} | {'' if met else 'missed'} |")

print("\n| what | bar | reached | |\n|---|---|---|---|")
b = load("bytes")
G, m, numel = b["ranks"] // 2, b["microbatches"], b["bytes"] / 4
formula = {"flat": G * m * numel * (b["gathers"] * 2 + 4) / 2, "cached": numel * (2 + 4) / 2}
received = {name: statistics.median(b[name]["received"]) for name in formula}
share = received["cached"] / formula["cached"]
row("2 × 4 ranks, bf16 parameters, f32 gradients: bytes into a host, at its interface, of (H−1)/H · P · (p + 4)",
    "≤ 1.05", f"{share:.3f}; without: {received['flat'] / formula['flat']:.3f} of its formula, "
    f"{received['flat'] / received['cached']:.1f} × as many", share <= 1.05)
t = load("time")
ratios = sorted(a / c for a, c in zip(t["flat"]["seconds"], t["cached"]["seconds"]))
flat, cached = (statistics.median(t[name]["seconds"]) for name in ("flat", "cached"))
row("2 × 2 ranks, 64 MiB, a gather and an addition a microbatch: time without by time with", "≥ 4",
    f"{statistics.median(ratios):.2f} ({ratios[len(ratios) // 4]:.2f}–{ratios[-1 - len(ratios) // 4]:.2f}): "
    f"{flat:.3f} s by {cached:.3f} s", statistics.median(ratios) >= 4)
alone = statistics.median(load("limit")["flat"]["seconds"])
row("the limit without a network: time without by the time of the same 4 ranks on one host", "",
    f"{flat / alone:.2f}: {alone:.3f} s", True)
if open(f"{sys.argv[1]}/bare").read(1):
    bare = load("bare")
    network = statistics.median(bare["seconds"]["bare"]) * t["bytes"] / (bare["bytes"] / 2)  # slices and sums, both in f32
    row("with one: that time, and a bare loop's of `fi_read` for the bytes that cross, one after the other", "",
        f"{flat / (alone + network):.2f}: {alone + network:.3f} s", True)
for name, what, bar, ops in (("mpi", "Open MPI", 4, ("MPI_Allgather", "MPI_Reduce_scatter_block")),
                             ("gloo", "gloo", 8, ("all_gather_into_tensor", "reduce_scatter_tensor"))):
    lines = {one["op"]: one for one in map(json.loads, open(f"{sys.argv[1]}/{name}"))}
    if lines:
        seconds = t["microbatches"] * sum(lines[op]["bytes"] / lines[op]["gbps"] * 1e-9 for op in ops)
        row(f"the same against {what}'s all-gather and reduce-scatter", f"≥ {bar}",
            f"{seconds / cached:.2f}: {seconds:.3f} s", seconds / cached >= bar)
one = load("one")
ratios = sorted(a / c for a, c in zip(one["flat"]["seconds"], one["cached"]["seconds"]))
row("2 × 1 ranks, where the cache is off: time with `ODC_NODE_CACHE=off` by time with `auto`", "≥ 0.98",
    f"{statistics.median(ratios):.3f} ({ratios[len(ratios) // 4]:.3f}–{ratios[-1 - len(ratios) // 4]:.3f}): "
    f"{statistics.median(one['flat']['seconds']):.3f} s", statistics.median(ratios) >= 0.98)
PYTHON

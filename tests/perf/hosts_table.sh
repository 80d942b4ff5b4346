#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Prints, as Markdown, the table of docs/performance.md for jobs between hosts: libodc compared with a bare libfabric loop of
# the same processes, with the bars, and with Open MPI, if it is installed, and gloo, if PYTHON (default python3) has torch. The
# hosts are network namespaces (tests/harness/hosts.sh), so it needs root.
#
# usage: [PYTHON=...] tests/perf/hosts_table.sh BUILD_DIRECTORY [ROUNDS]
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../harness/usage.sh
. "$(dirname "$0")/../harness/usage.sh"
takes 1 2 "$@"

build=$(cd "$1" && pwd)
rounds=${2:-41}
hosts=$(cd "$(dirname "$0")/../harness" && pwd)/hosts.sh
peers=$(cd "$(dirname "$0")/peers" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
built=$build/tests/perf/peers
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# run HOSTS RANKS WHAT ROUNDS
run() {
    timeout 600 "$hosts" "$1" -- "$hosts" ranks "$2" "$built/fabric_race" "$3" "$4" >"$scratch/$3-$1"
}

# replay NAME LENGTHS: compute takes as long as communication; two or more microbatches in a minibatch.
replay() {
    timeout 600 "$hosts" 4 -- "$hosts" ranks 4 "$build/tools/odc" replay --prefetch --lengths "$root/$2" \
        --minibatch 8 --scale 512 --json 2>/dev/null >"$scratch/replay-$1"
}

# others N: these are reported without a bar; what cannot run is left out, with the reason on stderr.
others() {
    timeout 300 "$hosts" "$1" -- "$peers/mpi_hosts.sh" "$built/mpi_peers" 67108864 7 >>"$scratch/others" ||
        echo "hosts_table.sh: no rows of MPI over $1 hosts" >&2
    timeout 300 "$hosts" "$1" -- "$hosts" ranks "$1" "${PYTHON:-python3}" -W ignore "$peers/gloo_peers.py" 7 \
        >>"$scratch/others" || echo "hosts_table.sh: no rows of gloo over $1 hosts" >&2
}

cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
run 2 2 move "$rounds"
run 4 4 move "$rounds"
run 8 8 incast "$rounds"
run 4 8 sync 101
replay stdlib tools/cli/stdlib-lengths.txt
replay long tests/data/long-lengths.txt
others 2
others 4
cat <<END
Measured on $(nproc) cores (${cpu:-unknown processor}) by \`tests/perf/hosts_table.sh BUILD\`: hosts are network
namespaces joined by veth and a bridge, provider \`tcp;ofi_rxm\`, 64 MiB f32. GB/s are of the bytes that come from other
hosts, into each rank.

| what | bar | reached | the limit against itself | GB/s | limit, GB/s | |
|---|---|---|---|---|---|---|
END
python3 - "$scratch" <<'PYTHON'
import json, math, statistics, sys

def load(name):
    j = json.load(open(f"{sys.argv[1]}/{name}"))
    print(f"{name}: seed {j['seed']}", file=sys.stderr)
    return j

def interval(values):
    """The median and its 95 % confidence interval, computed as `odc bench` does (tools/rank/statistics.cc)."""
    values, n = sorted(values), len(values)
    k = max([1] + [k for k in range(1, n // 2) if sum(math.comb(n, i) for i in range(k)) <= 0.025 * 2**n])
    return statistics.median(values), values[k - 1], values[n - k]

def words(values, unit=""):
    return "{:.3g}{u} ({:.3g}–{:.3g})".format(*interval(values), u=unit)

def row(what, bar, seconds, name, limit, again, moved, limit_moved):
    """`moved`: bytes or elements of a round, for the speeds."""
    speed = moved / limit_moved
    ratios = [speed * b / a for a, b in zip(seconds[name], seconds[limit])]
    self_ratios = words([b / a for a, b in zip(seconds[limit], seconds[again])]) if again else ""
    gbps = [f"{m / statistics.median(seconds[s]) * 1e-9:.3g}" for m, s in ((moved, name), (limit_moved, limit))]
    met = "" if bar is None else "met" if interval(ratios)[0] >= bar else "missed"
    bar = "" if bar is None else f"≥ {bar}"
    print(f"| {what} | {bar} | {words(ratios)} | {self_ratios} | {' | '.join(gbps)} | {met} |")

for n in 2, 4:
    j = load(f"move-{n}")
    s, moved = j["seconds"], j["bytes"] * (n - 1) / n
    for what, bar, name, limit, work in (("gather", 0.9, "gather", "bare_gather", "copies the own slice, too"),
                                         ("scatter-add f32", 0.8, "add_f32", "bare_add", "adds what it reads and the own slice")):
        row(f"{what}, n = {n}, of the bare loop's bytes/s", bar, s, name, "bare", None, moved, moved)
        row(f"… of a bare loop that {work}, by as many threads", 0.95, s, name, limit, f"{limit}_again", moved, moved)
    ratios = [a / b for a, b in zip(s["add_f32"], s["add_bf16"])]
    gbps = [f"{m / statistics.median(s[k]) * 1e-9:.3g}" for m, k in ((moved / 2, "add_bf16"), (moved, "add_f32"))]
    print(f"| scatter-add bf16, n = {n}, of the f32 elements/s | ≥ 1.6 | {words(ratios)} | | {' | '.join(gbps)} | "
          f"{'met' if interval(ratios)[0] >= 1.6 else 'missed'} |")
j = load("incast-8")
others = j["ranks"] - 1
row(f"{others} ranks add to 1, of 1 rank's bytes/s", 0.9, j["seconds"], "many", "one", "one_again",
    j["bytes"] * others, j["bytes"])
s, moved = j["seconds"], j["bytes"] * others
row("… of a bare loop that reads and adds the same", 0.95, s, "many", "bare_many", "bare_many_again", moved, moved)
row("… that loop, of 1 rank's bytes/s", None, s, "bare_many", "bare_one", None, moved, j["bytes"])
grown = j["private_bytes_after"] - j["private_bytes_before"]
print(f"| … private memory that the owner's process gained meanwhile | ≤ {j['staging_bytes'] / 2**20:g} MiB | "
      f"{grown / 2**20:.3g} MiB | | | | {'met' if grown <= j['staging_bytes'] else 'missed'} |")
j = load("sync-4")
for what, bar, values, unit in (("sync, 8 ranks on 4 hosts, all ready", 2, [1e3 * s for s in j["seconds"]["sync"]], " ms"),
                                ("… processor time of a rank, of 20 in a row", None, [1e6 * s for s in j["seconds"]["processor"]], " µs"),
                                ("… packets that a rank sends, log2(hosts)", 2, j["sync_packets"], ""),
                                ("publish, packets that a rank sends", 6, j["publish_packets"], "")):
    met = "" if bar is None else "met" if interval(values)[0] <= bar else "missed"
    print(f"| {what} | {'' if bar is None else f'≤ {bar}{unit}'} | {words(values, unit)} | | | | {met} |")
for name, words_of in ("stdlib", "4 hosts"), ("long", "… long sequences only"):
    j = json.load(open(f"{sys.argv[1]}/replay-{name}"))
    for arm, bar in ("waiting", None), ("prefetching", 0.85):
        share = j[arm]["share_of_ideal"]
        met = "" if bar is None else "met" if share["median"] >= bar else "missed"
        print(f"| `odc replay --prefetch`, {words_of}: {arm}, share of the ideal | {'' if bar is None else f'≥ {bar}'} | "
              f"{share['median']:.3g} ({share['low']:.3g}–{share['high']:.3g}) | | | | {met} |")
print("\nOthers, GB/s likewise: " + "; ".join(
    f"{j['op']}, n = {j['ranks']}: {j['gbps'] * (j['ranks'] - 1) / j['ranks']:.3g}"
    for j in map(json.loads, open(f"{sys.argv[1]}/others"))) + ".")
PYTHON

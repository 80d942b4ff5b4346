#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# odc replay --hosts: what crosses between emulated hosts equals the formulas, computed here from the ranks' slices, and nothing
# comes sooner than the emulated links allow.
set -u

odc=${ODC:?names the odc command}
# shellcheck source-path=SCRIPTDIR source=../harness/shell_checks.sh
. "${ODC_SOURCE_DIR:?the folder of the sources}/tests/harness/shell_checks.sh"
seconds=120
if ! "$odc" info | grep -q "fabric *ready"; then
    "$odc" info | grep fabric
    exit 77
fi

# Samples that fill the budget: a microbatch each.
printf '65536\n65536\n' >"$work/full"
cat >"$work/model.py" <<'PYTHON'
"""model.py JSON HOSTS MICROBATCHES: each rank runs so many microbatches, of which each gathers twice and adds once."""
import json, sys

j = json.load(open(sys.argv[1]))
hosts, microbatches = int(sys.argv[2]), int(sys.argv[3])
s = j["settings"]
ranks, numel, layers = s["ranks"], s["layer_elements"], s["layers"]
local_ranks = ranks // hosts
chunk = -(-numel // ranks)  # torch.chunk
slices = [max(0, min(numel - rank * chunk, chunk)) for rank in range(ranks)]
foreign = [numel - sum(slices[host * local_ranks : (host + 1) * local_ranks]) for host in range(hosts)]
p, g = 2, 4
wanted = {
    "flat": sum(local_ranks * microbatches * n * layers * (2 * p + g) for n in foreign) / hosts,
    "cache": sum(n * layers * (p + local_ranks * microbatches * g) for n in foreign) / hosts,
    "cache+sums": sum(n * layers * (p + (8 if s["exact"] else 4)) for n in foreign) / hosts,
    "ring": microbatches * (ranks - 1) / ranks * numel * layers * (2 * p + g),
}
arms = [(a["between_hosts"], a["schedule"], a["policy"]) for a in j["arms"]]
assert arms == [("ring", "collective", "lb-micro"), ("ring", "collective", "sorted-rows"), ("flat", "odc", "lb-mini"),
                ("cache", "odc", "lb-mini"), ("cache+sums", "odc", "lb-mini")], arms
for arm in j["arms"]:
    n, name = arm["network"], arm["between_hosts"]
    assert n["bytes_into_host"] == n["formula_bytes_into_host"], (name, n)
    # A ring's bytes are whole numbers for each gather and addition.
    assert abs(n["bytes_into_host"] - wanted[name]) <= (3 * microbatches * layers if name == "ring" else 0), (name, n, wanted)
    of_model = 46797824 / numel  # 1.5b
    link = wanted[name] * 8 * of_model / s["bandwidth"]
    assert link * (1 - 1e-2) < n["network_seconds"] < link * (1 + 1e-2), (name, n, link)
    assert n["minibatch_seconds"]["low"] >= n["network_seconds"] * (1 - 1e-6), (name, n)
    assert 0 < n["share_of_longer"] <= 1 and 0 <= n["hidden"] <= 1, (name, n)
PYTHON
replay() { expect 0 "$odc" replay --lengths "$work/full" --model 1.5b --minibatches 2 --seconds 1.5 --json "$@"; }
model() { python3 "$work/model.py" "$work/out" "$@" 2>"$work/err" || fail "$(cat "$work/err")"; }

replay --hosts 2 --ranks 4 --minibatch 2 --scale 65536 --bandwidth 2G
model 2 2
contains "$out" '"network_emulation": "emulated network: 2 hosts of 2 ranks, a link of 2 Gbit/s'
contains "$out" '"speedup_over_flat"'
# Links that are never busy, exact sums, and slices that are not equal.
replay --hosts 2 --ranks 4 --minibatch 1 --scale 65001 --bandwidth 100t --exact
model 2 1
replay --hosts 3 --ranks 6 --minibatch 1 --scale 60001
model 3 1

# Real lengths: ranks have different numbers of microbatches.
expect 0 "$odc" replay --hosts 2 --ranks 4 --minibatch 6 --minibatches 1 --seconds 1 --scale 65536
contains "$out" "emulated network: 2 hosts of 2 ranks, a link of 25 Gbit/s"
same "$(awk '/network s/ { rows = 5; next } rows-- > 0 { print ($(NF - 6) > 0 && $(NF - 6) == $(NF - 5)) }' "$work/out" | sort | uniq -c | tr -s ' ')" " 5 1"

# Pictures. With one microbatch a rank, no rank of a host computes a layer forward before the host's link has passed what all
# layers up to it have on other hosts, also what another rank read. All layers' gathers come before the first gradient.
replay --hosts 2 --ranks 4 --minibatch 1 --scale 65536 --bandwidth 1G --timeline "$work/t.svg" --trace "$work/t.json"
python3 - "$work/out" "$work/t.json" 2>"$work/err" <<'PYTHON' || fail "$(cat "$work/err")"
import json, sys

j, trace = (json.load(open(name)) for name in sys.argv[1:])
s = j["settings"]
events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
cached = 3, 4  # the arms with the node cache
for arm in cached:
    assert {tracks[arm, 8 + i] for i in range(4)} == {f"host {h} {d}" for h in (0, 1) for d in ("in", "out")}, tracks
foreign = s["layer_elements"] - 2 * -(-s["layer_elements"] // 4)
usec_per_element = 2 * 8 * 46797824 / s["layer_elements"] / s["bandwidth"] / s["time_compression"] * 1e6
checked = 0
for arm, host in [(arm, host) for arm in cached for host in (0, 1)]:
    link = sorted(
        (e["ts"], e["ts"] + e["dur"]) for e in events if (e["pid"], tracks[arm, e["tid"]]) == (arm, f"host {host} in")
    )
    assert all(a[1] <= b[0] + 0.01 for a, b in zip(link, link[1:])), "a link passes two things at once"
    first_end = min(e["ts"] + e["dur"] for e in events if e["pid"] == arm and e["name"] == "sync")
    for e in events:
        if e["pid"] != arm or e["cat"] != "forward" or e["ts"] > first_end or e["tid"] // 4 != host:
            continue
        busy = sum(max(0, min(end, e["ts"] + 0.01) - begin) for begin, end in link)
        passed = (e["args"]["layer"] + 1) * foreign * usec_per_element
        assert busy >= passed * (1 - 1e-4) - 1, (e, busy, passed)
        checked += 1
assert checked == 8 * s["layers"], checked
PYTHON
python3 -c 'import sys, xml.dom.minidom as x; x.parse(sys.argv[1])' "$work/t.svg" || fail "t.svg is not XML"
same "$(grep -cE '>host [01] (in|out)</text>' "$work/t.svg")" 16
contains "$(cat "$work/t.svg")" "Emulated network: 2 hosts of 2 ranks"

# Inside a job of one machine it joins; a job of several has hosts.
expect 0 "$odc" run -n 4 -- "$odc" replay --hosts 2 --lengths "$work/full" --model 1.5b --minibatch 1 --minibatches 1 \
    --seconds 0.5 --scale 65536
contains "$out" "[0] collective + lb-micro"
expect 2 env ODC_INTERFACE=lo "$odc" run -n 4 --hosts a,b --via "env ODC_HOST_ID={host}" --address 127.0.0.1 -- \
    "$odc" replay --hosts 2 --lengths "$work/full" --minibatch 1
contains "$err" "--hosts emulates hosts on one machine, and rank"
expect 2 "$odc" run -n 3 -- "$odc" replay --hosts 2 --lengths "$work/full" --minibatch 1
contains "$err" "--hosts 2 cannot have 3 ranks"

[ "$failures" -eq 0 ]

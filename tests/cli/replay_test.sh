#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# odc replay: its JSON, pictures and table for runs of a second or two, as its own job and inside one, and its errors for bad
# input. No bars: the speed of this machine is not tested.
set -euo pipefail

odc=${ODC:?names the odc command}
lengths=${ODC_SOURCE_DIR:?}/tools/cli/stdlib-lengths.txt
scratch=$(mktemp -d)
# shellcheck source=tests/harness/neighbours.sh
. "$ODC_SOURCE_DIR/tests/harness/neighbours.sh"
trap 'stop_neighbours; rm -rf "$scratch"' EXIT

# check FILE EXPRESSION: the expression is true of FILE's JSON object `j` and its arms by name, `arms`.
check() {
    python3 - "$@" <<'PYTHON'
import json, sys
j = json.load(open(sys.argv[1]))
arms = {f"{arm['schedule']} {arm['policy']}": arm for arm in j.get("arms", [])}
if not eval(f"({sys.argv[2]})"):
    sys.exit(f"not so: {sys.argv[2]}\nin {str(j)[:2000]}")
PYTHON
}

# refuses STATUS TEXT ARGUMENT...: odc replay exits with STATUS and one line that contains TEXT.
refuses() {
    local wanted=$1 text=$2 status=0
    shift 2
    "$odc" replay "$@" >"$scratch/out" 2>"$scratch/err" || status=$?
    if [ "$status" != "$wanted" ] || ! grep -q -- "$text" "$scratch/err"; then
        echo "odc replay $* ended with $status instead of $wanted or did not say \"$text\":" >&2
        cat "$scratch/out" "$scratch/err" >&2
        exit 1
    fi
}

# The table has speedups where the verdict has a gain, and none where it refuses one.
table_follows_verdict() {
    local speedups=' +- +- '
    if grep -q '^verdict: these lengths' "$scratch/out"; then
        speedups=' +[0-9]+\.[0-9]+x +[0-9]+\.[0-9]+x '
    fi
    if [ "$(grep -cE '^(odc|collective) \+ .* %$' "$scratch/out")" != "$(grep -cE "^(odc|collective) \\+ .*$speedups.* %$" "$scratch/out")" ]; then
        echo "the table does not follow its verdict:" >&2
        cat "$scratch/out" >&2
        exit 1
    fi
}

# The six arms, with pictures. A layer's elements are not divisible by 3 ranks.
"$odc" replay --lengths "$lengths" --ranks 3 --minibatch 4 --minibatches 2 --seconds 2 --scale 65536 --json \
    --timeline "$scratch/t.svg" --trace "$scratch/t.json" >"$scratch/json" 2>"$scratch/err"
check "$scratch/json" '[*arms] == ["collective local-sort", "collective lb-micro", "collective sorted-rows",
                                   "odc local-sort", "odc lb-micro", "odc lb-mini"]'
check "$scratch/json" 'all(a["samples_per_second"] > 0 and 0 < a["share_of_ideal"] <= 1 and 0 <= a["idle"] < 1
                           and len(a["rank_idle"]) == 3 for a in j["arms"])'
check "$scratch/json" 'arms["collective lb-micro"]["speedup"] == arms["collective lb-micro"]["ideal_speedup"] == 1'
check "$scratch/json" 'arms["collective sorted-rows"]["speedup_over_sorted_rows"] == 1
                       and arms["collective sorted-rows"]["ideal_speedup"] >= 1 - 1e-9
                       and 0 < j["speedup_over_sorted_rows"]["low"] <= j["speedup_over_sorted_rows"]["high"]'
check "$scratch/json" 'all(arms["odc " + p]["ideal_samples_per_second"] >=
                           arms["collective " + p]["ideal_samples_per_second"] for p in ("local-sort", "lb-micro"))'
check "$scratch/json" '0 < j["speedup"]["low"] <= j["speedup"]["median"] <= j["speedup"]["high"]'
check "$scratch/json" '0 <= j["others_cpu_share"] <= 1 and ("not resolved" in j["verdict"] or "these lengths" in j["verdict"])'
# Beside each speedup stands whether the verdict refuses it, and why.
resolution='all(a["resolved"] == ("these lengths" in j["verdict"]) for a in j["arms"]) and all(
    one["resolved"] and one["why_not_resolved"] is None and "these lengths" in j["verdict"] or
    not one["resolved"] and j["verdict"] == "verdict: not resolved: " + one["why_not_resolved"]
    for one in (j["speedup"], j["speedup_over_sorted_rows"]))'
check "$scratch/json" "$resolution"
check "$scratch/json" 'j["speedup"]["resolved"] is False' # of two pairs
# A disturbed pair is repeated, half of them at most, and an undisturbed run repeats none.
check "$scratch/json" '0 <= j["pairs_repeated"] <= 1'
# Planning is deterministic, and the emulated compute is as requested.
check "$scratch/json" 'abs(sum(24 / a["ideal_samples_per_second"] for a in j["arms"]) - 0.95 * 2) < 1e-6'
# Both passes gather every layer, backward adds: twice as many gathers, with elements half as wide.
check "$scratch/json" '0 < j["communication"]["scatter_add_bytes"] <= j["communication"]["gather_bytes"]'
check "$scratch/json" '"emulated device" in j["emulation"] and j["settings"]["scale"] == 65536'
check "$scratch/t.json" '{e["name"].split()[0] for e in j["traceEvents"] if e["ph"] == "X"} >=
                         {"forward", "backward", "gather", "scatter-add", "barrier", "sync", "update"}'
check "$scratch/t.json" '{e["pid"] for e in j["traceEvents"]} == set(range(6))'
check "$scratch/t.json" '{e["tid"] for e in j["traceEvents"] if e["ph"] == "X"} == set(range(6))'
python3 -c 'import sys, xml.dom.minidom as x; x.parse(sys.argv[1])' "$scratch/t.svg"
grep -q "Emulated device" "$scratch/t.svg"
# The picture has all minibatches, and the idle shares of the table.
check "$scratch/json" '[float(share) for share in __import__("re").findall(r">(-?\d+) %</text>", open("'"$scratch/t.svg"'").read())] == [
    round(100 * share) for arm in ("collective lb-micro", "odc lb-mini") for share in arms[arm]["rank_idle"]]'

# Beside programs that use all processors nothing is concluded, in words, table, JSON or picture.
start_neighbours
if neighbours_are_busy; then
    "$odc" replay --lengths "$lengths" --ranks 2 --minibatch 2 --minibatches 4 --seconds 3 --scale 65536 \
        --timeline "$scratch/busy.svg" >"$scratch/out" 2>"$scratch/err"
    grep -qE '^verdict: not resolved: other programs used [0-9]+ % of the processors$' "$scratch/out"
    table_follows_verdict
    grep -q 'The whole run: not resolved' "$scratch/busy.svg"
    if grep -qE '×|→' "$scratch/busy.svg"; then
        echo "the picture shows a gain that the verdict refuses" >&2
        exit 1
    fi
fi
stop_neighbours

# Exact sums; every sum is checked.
"$odc" replay --lengths "$lengths" --ranks 3 --minibatch 2 --minibatches 4 --seconds 1 --scale 65536 --exact --json \
    >"$scratch/json" 2>"$scratch/err"
check "$scratch/json" 'j["settings"]["exact"] and len(j["arms"]) == 6'
check "$scratch/json" "$resolution"
if grep -q "largest" "$scratch/err"; then # a clamped gradient would be logged
    cat "$scratch/err"
    exit 1
fi

# Lookahead: two arms more, on other minibatches of the same samples.
"$odc" replay --lengths "$lengths" --ranks 2 --minibatch 2 --minibatches 5 --lookahead 2 --most-moved 1 --seconds 2 \
    --scale 65536 --json >"$scratch/json" 2>"$scratch/err"
check "$scratch/json" '[a["lookahead"] for a in j["arms"]] == [1] * 6 + [2, 2] and j["settings"]["lookahead"] == 2'
check "$scratch/json" 'all(a["share_of_ideal"] <= 1 for a in j["arms"])
                       and j["arms"][7]["ideal_samples_per_second"] >= j["arms"][5]["ideal_samples_per_second"] * (1 - 1e-9)'
check "$scratch/json" '0 < j["speedup_over_same_order"]["low"] <= j["speedup_over_same_order"]["high"]'
check "$scratch/json" '(lambda words: words.startswith("verdict: not resolved") or
                       "over collective + sorted-rows; " in words and "over collective + sorted-rows + lookahead" in words)(
                       j["verdict"])'
check "$scratch/json" '0 <= j["exchanged"]["moved"] <= 1 and 0 <= j["exchanged"]["displacement"] <= 0.5'

# Unequal devices: the noise follows from the seed, slow ranks are slow when they are said to be, and the bound is that of a
# model of its own here, which knows all costs as the one minibatch takes all lengths.
for seed in 1 1 2; do
    "$odc" replay --lengths "$lengths" --ranks 3 --minibatch 2 --minibatches 3 --seconds 0.5 --scale 99999999 --json \
        --noise 0.1 --slow 0:2,1:4:2-3 --seed $seed >"$scratch/json" 2>"$scratch/err"
    python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["settings"]["device_speeds"])' "$scratch/json"
done >"$scratch/speeds"
test "$(sort "$scratch/speeds" | uniq -c | awk '{ print $1 }' | sort | tr '\n' ' ')" = "1 2 "
check "$scratch/json" 'len({v for m in j["settings"]["device_speeds"] for v in m}) == 9'
check "$scratch/json" 'all(0.9 <= v * slow <= 1.1 for m, factors in zip(j["settings"]["device_speeds"],
                           ((2, 1, 1), (2, 4, 1), (2, 4, 1)), strict=True) for v, slow in zip(m, factors, strict=True))'
# The ranks' speeds together decide with equal lengths, the fastest rank with a long one; nothing is faster than the bound.
for longest in 5000 65000; do
    printf '%s\n' {4001..4011} "$longest" >"$scratch/twelve"
    "$odc" replay --lengths "$scratch/twelve" --ranks 4 --minibatch 3 --minibatches 1 --seconds 0.5 --scale 99999999 \
        --noise 0.3 --slow 1:1.7 --json >"$scratch/json" 2>"$scratch/err"
    check "$scratch/json" '(lambda cost, v: all(
        abs(a["bound_samples_per_second"] * max(sum(cost) / sum(v), max(cost) / max(v)) /
            (12 * j["settings"]["time_compression"]) - 1) < 1e-9 and a["share_of_bound"] <= 1
        and a["ideal_samples_per_second"] <= a["bound_samples_per_second"] * (1 + 1e-9) for a in j["arms"]))(
            [j["settings"]["cost"]["a"] * x * x + j["settings"]["cost"]["b"] * x
             for x in (int(s) / 32000 for s in open("'"$scratch/twelve"'"))], j["settings"]["device_speeds"][0])'
done

# Claims: both collective baselines, ODC with equal speeds, and three arms with speeds or claims or both.
claims() {
    check "$scratch/json" '[(a["schedule"], a["policy"], a["speeds"], a["tail"]) for a in j["arms"]] == [
        ("collective", "lb-micro", "equal", 0), ("collective", "sorted-rows", "equal", 0), ("odc", "lb-mini", "equal", 0),
        ("odc", "lb-mini", "measured", 0), ("odc", "lb-mini", "equal", 1), ("odc", "lb-mini", "measured", 0.25)]'
    check "$scratch/json" 'all(0 < a["share_of_ideal"] <= 1 and 0 < a["share_of_bound"] <= 1 and a["seconds"] > 0
                               for a in j["arms"])'
    # Every sum is checked, so each item was computed once. The planner leaves at most the tail.
    check "$scratch/json" '[a["claimed"] for a in j["arms"][:5]] == [0, 0, 0, 0, 1]
                           and all(not any(a["rank_claimed"]) for a in j["arms"][:4])
                           and all(sum(a["rank_claimed"]) > 0 for a in j["arms"][4:])'
    check "$scratch/json" '0 < j["speedup_over_static"]["low"] <= j["speedup_over_static"]["high"]
                           and j["settings"]["warm_up"] == 5 and j["settings"]["claim"] == 0.25'
}
"$odc" replay --lengths "$lengths" --ranks 3 --minibatch 8 --minibatches 3 --seconds 4 --scale 65536 --noise 0.1 \
    --slow 0:8 --claim 0.25 --json --timeline "$scratch/t.svg" --trace "$scratch/t.json" >"$scratch/json" 2>"$scratch/err"
claims
# Speeds are measured and used: this rank is so slow that no machine hides it.
check "$scratch/json" 'j["arms"][3]["ideal_samples_per_second"] > 1.2 * j["arms"][2]["ideal_samples_per_second"]'
check "$scratch/json" '0 < j["arms"][5]["claimed"] < 1'
# The trace has each claimed microbatch; each arm's items are 0, 1, ... in each of the three minibatches.
python3 - "$scratch/json" "$scratch/t.json" <<'PYTHON'
import collections, json, sys
arms, trace = (json.load(open(name)) for name in sys.argv[1:])
for number, arm in enumerate(arms["arms"]):
    claimed = [e["args"]["claimed"] for e in trace["traceEvents"]
               if e["pid"] == number and e["name"] == "forward 0" and "claimed" in e["args"]]
    times = list(collections.Counter(claimed).items())
    assert len(claimed) == sum(arm["rank_claimed"]), (arm, claimed)
    assert sorted(times) == sorted(times, key=lambda item: (-item[1], item[0])) and all(n <= 3 for _, n in times), times
    assert sorted(set(claimed)) == list(range(len(times))), claimed
PYTHON
python3 -c 'import sys, xml.dom.minidom as x; x.parse(sys.argv[1])' "$scratch/t.svg"
grep -q ">claimed<" "$scratch/t.svg"
grep -q "measured speeds, 25 % claimed" "$scratch/t.svg"
grep -qE 'fill="#(7b3f98|b98ad0)" d="M' "$scratch/t.svg" # one of their shades
"$odc" replay --lengths "$lengths" --ranks 2 --minibatch 4 --minibatches 2 --lookahead 2 --seconds 1 --scale 65536 \
    --claim 0.5 >"$scratch/out" 2>"$scratch/err"
for arm in "odc + lb-mini + lookahead + speeds" "odc + lookahead + claims" "odc + lb-mini + lookahead + speeds + claims"; do
    grep -qE "^${arm//+/\\+} .* %$" "$scratch/out"
done

# The table; a corpus; more ranks than elements in a layer; a rank alone.
mkdir "$scratch/corpus"
for size in 3 500 70000 1200; do
    head -c "$size" /dev/zero | tr '\0' 'x' >"$scratch/corpus/$size.txt"
done
"$odc" replay --corpus "$scratch/corpus" --ranks 4 --minibatch 2 --minibatches 3 --seconds 1.5 --scale 99999999 \
    >"$scratch/out" 2>"$scratch/err"
table_follows_verdict
grep -q "^emulated device" "$scratch/out"
grep -q "^odc + lb-mini .*%$" "$scratch/out"
grep -q "4 lengths.*longest 65536" "$scratch/out"
"$odc" replay --lengths "$lengths" --ranks 1 --minibatch 1 --minibatches 1 --seconds 0.5 --model 32b --scale 99999999 \
    >"$scratch/out" 2>"$scratch/err"

# Inside a job it joins: one object, from rank 0.
"$odc" run -n 2 -- "$odc" replay --lengths "$lengths" --minibatch 2 --minibatches 1 --seconds 0.5 --scale 65536 \
    --model 1.5b --json 2>"$scratch/err" | sed 's/^\[[0-9]*\] //' >"$scratch/json"
check "$scratch/json" 'j["settings"]["ranks"] == 2 and len(arms) == 6'

# --prefetch: its conclusion follows from its measurements; on one host, and with each rank on a host of its own.
apart=(env ODC_INTERFACE=lo "$odc" run -n 2 --hosts a,b --via "env ODC_HOST_ID={host}" --address 127.0.0.1)
for transport in shm fabric; do
    start=("$odc" run -n 2)
    if [ $transport = fabric ]; then
        if ! "$odc" info | grep -q "fabric *ready"; then
            echo "replay --prefetch between hosts: skipped, $("$odc" info | grep fabric)"
            continue
        fi
        start=("${apart[@]}")
    fi
    "${start[@]}" -- "$odc" replay --prefetch --compute 0.5 --lengths "$lengths" --minibatch 2 --minibatches 2 \
        --scale 65536 --model 1.5b --json 2>"$scratch/err" | sed 's/^\[[0-9]*\] //' >"$scratch/json" ||
        { cat "$scratch/err" >&2; exit 1; }
    check "$scratch/json" '[r["transport"] for r in j["routes"]] == ["'"$transport"'"]'
    check "$scratch/json" 'j["settings"]["ranks"] == 2 and j["settings"]["compute"] == 0.5 and j["sums"] == "exact"'
    check "$scratch/json" 'all(0 < j[arm]["share_of_ideal"]["median"] <= j[arm]["share_of_longer"]["median"] + 1e-9
                               for arm in ("waiting", "prefetching"))'
    check "$scratch/json" 'min(j["ideal_seconds"]["median"], j["communication_seconds"]["median"]) > 0'
done
"$odc" replay --prefetch --ranks 2 --lengths "$lengths" --minibatch 2 --minibatches 1 --scale 65536 >"$scratch/out" \
    2>"$scratch/err"
grep -q "^rank 0 to rank 1: shm: " "$scratch/out"
grep -q "^prefetching hides " "$scratch/out"

printf '100\ntext\n' >"$scratch/text"
printf '100\n70000\n' >"$scratch/above"
printf '100\n-5\n' >"$scratch/negative"
: >"$scratch/empty"
mkdir "$scratch/nothing"
refuses 2 "$scratch/text" --lengths "$scratch/text"
refuses 2 ":2: \"text\"" --lengths "$scratch/text"
refuses 2 "70000" --lengths "$scratch/above"
refuses 2 "-5" --lengths "$scratch/negative"
refuses 2 "$scratch/empty" --lengths "$scratch/empty"
refuses 2 "$scratch/nothing" --corpus "$scratch/nothing"
# Files of /proc have content but no size.
if [ -r /proc/sys/kernel/random/uuid ]; then
    refuses 2 "no text files in it or below it that have a size" --corpus /proc/sys/kernel/random
    test "$(wc -l <"$scratch/err")" = 1
fi
refuses 2 "$scratch/missing" --lengths "$scratch/missing"
printf '\xef\xbb\xbf100\r\nten\r\n' >"$scratch/marked" # a line is told from what Windows puts before the first one
refuses 2 ":2: \"ten\" is not a positive whole number" --lengths "$scratch/marked"
refuses 2 ":2: the sample's 70000 tokens are above the budget of 65536 per microbatch; raise --max-tokens or cut" \
    --lengths "$scratch/above"
refuses 2 "7b, 14b" --lengths "$lengths" --model 3b
refuses 2 "either --lengths FILE or --corpus DIR" --lengths "$lengths" --corpus "$scratch/corpus"
refuses 2 "standard input" --lengths -
refuses 2 "--ranks" --lengths "$lengths" --ranks 0
refuses 2 '^odc: --scale: "0" is not a whole number from 1 to 18446744073709551615$' --lengths "$lengths" --scale 0
refuses 2 '^odc: --seed: "-1" is not a whole number from 0 to 18446744073709551615$' --lengths "$lengths" --seed -1
refuses 2 '^odc: --max-tokens: "99999999999999999999999" is not' --lengths "$lengths" --max-tokens 99999999999999999999999
for wrong in nan -nan inf 0 1e400 9s ''; do
    refuses 2 "^odc: --seconds: \"$wrong\" is not a number from 0.1 to 1000000$" --lengths "$lengths" --seconds "$wrong"
done
refuses 2 '"0" is not RANK:FACTOR or RANK:FACTOR:FIRST-LAST' --lengths "$lengths" --slow 0
refuses 2 '"0:2:3" is not RANK:FACTOR or RANK:FACTOR:FIRST-LAST' --lengths "$lengths" --slow 1:2,0:2:3
refuses 2 '^odc: --slow x:2, rank: "x" is not a whole number from 0 to 1023$' --lengths "$lengths" --slow x:2
refuses 2 '^odc: --slow 1:0, factor: "0" is not a number from 0.01 to 100$' --lengths "$lengths" --slow 1:0
refuses 2 '^odc: --slow 0:2:4-3, last minibatch: "3" is not a whole number from 4 to' --lengths "$lengths" --slow 0:2:4-3
refuses 2 '^odc: --slow names rank 8; the run has ranks 0 to 7$' --lengths "$lengths" --slow 7:2,8:2
refuses 2 '^odc: --slow names minibatch 13; the run has minibatches 1 to 12$' --lengths "$lengths" --slow 0:2:12-13
refuses 2 'did you mean --noise?' --lengths "$lengths" --nosie 0.1
refuses 2 '--exact takes no value' --lengths "$lengths" --exact=3
refuses 2 '^odc: --claim: "1.5" is not a number from 0.01 to 1$' --lengths "$lengths" --claim 1.5
refuses 2 'did you mean --claim?' --lengths "$lengths" --claims 0.25
refuses 2 '^odc: --noise: "1" is not a number from 0 to 0.9$' --lengths "$lengths" --noise 1
refuses 2 "800000 samples is too large .* to 59918" --lengths "$lengths" --ranks 8 --minibatch 100000
test "$(wc -l <"$scratch/err")" = 1
refuses 2 "requires --prefetch" --lengths "$lengths" --compute 2
for other in "--seconds 5" "--timeline $scratch/one" "--trace $scratch/one" "--noise 0.1" "--slow 0:2" "--claim 1"; do
    refuses 2 "^odc: ${other%% *} excludes --prefetch" --lengths "$lengths" --prefetch $other
done
refuses 2 '^odc: --hosts: "1" is not a whole number from 2 to 512$' --lengths "$lengths" --hosts 1
for hosts in 3 8; do
    refuses 2 "^odc: --hosts $hosts cannot have 8 ranks, equally many on each and at least two; give --ranks a multiple" \
        --lengths "$lengths" --hosts $hosts
    test "$(wc -l <"$scratch/err")" = 1
done
refuses 2 "^odc: --bandwidth requires --hosts" --lengths "$lengths" --bandwidth 25G
for wrong in 25 G 25X 25GB '25 G' 0G -1G nanG 1e400G 999K 101T ''; do
    refuses 2 "^odc: --bandwidth: \"$wrong\" is not a bandwidth from 1M to 100T, such as 25G for 25 Gbit/s$" \
        --lengths "$lengths" --hosts 2 --bandwidth "$wrong"
done
for other in "--lookahead 2" "--noise 0.1" "--slow 0:2" "--claim 1" --prefetch; do
    refuses 2 "excludes" --lengths "$lengths" --hosts 2 $other
done
refuses 1 "cannot be written" --lengths "$lengths" --ranks 2 --seconds 0.5 --timeline "$scratch/missing/t.svg"
test "$(grep -c "cannot be written" "$scratch/err")" = 1  # not once per rank
# The figures are printed even if writing a picture fails at the end.
if [ -w /dev/full ]; then
    refuses 1 "/dev/full cannot be written" --lengths "$lengths" --ranks 2 --minibatch 2 --minibatches 1 --seconds 0.5 \
        --scale 65536 --json --timeline /dev/full
    check "$scratch/out" 'len(arms) == 6'
fi
"$odc" replay --ranks 2 --minibatch 2 --minibatches 1 --seconds 0.5 --scale 65536 >"$scratch/out" 2>"$scratch/err"
grep -qE '^verdict: not resolved: [^;]*$' "$scratch/out"
# Two pictures in one file, by different names, would overwrite each other.
refuses 2 "are one file" --lengths "$lengths" --timeline "$scratch/one" --trace "$scratch/corpus/../one"
test "$(wc -l <"$scratch/err")" = 1
test ! -e "$scratch/one"
ln -s t.svg "$scratch/link"
refuses 2 "are one file" --lengths "$lengths" --timeline "$scratch/t.svg" --trace "$scratch/link"
refuses 2 "--timeline and --lengths are one file" --lengths "$lengths" --timeline "$lengths"
cp "$lengths" "$scratch/lengths"
ln "$scratch/lengths" "$scratch/hard"
refuses 2 "--timeline and --lengths are one file" --lengths "$scratch/lengths" --timeline "$scratch/hard"
refuses 2 "cannot share standard input or a pipe" --lengths <(cat "$lengths")
# Once, not by each rank.
ODC_TRANSPORTS=shmm "$odc" replay --seconds 1 --minibatches 1 2>"$scratch/err" && exit 1
test "$(grep -c 'ODC_TRANSPORTS="shmm" is wrong' "$scratch/err")" = 1
# Also one that only ranks can find, once they meet.
ODC_TRANSPORTS=cuda "$odc" replay --ranks 3 --seconds 1 --minibatches 1 2>"$scratch/err" && exit 1
test "$(grep -c 'no transport connects rank 0' "$scratch/err")" = 1
test "$(wc -l <"$scratch/err")" = 2
# A failing run keeps the previous run's pictures.
echo old >"$scratch/old.svg"
refuses 1 "cannot be written" --lengths "$lengths" --ranks 2 --seconds 0.5 --timeline "$scratch/old.svg" \
    --trace "$scratch/missing/t.json"
test "$(cat "$scratch/old.svg")" = old

# It checks the data: with one addition or one gathered element lost it fails with an error.
for calls in "--seconds 0.5" --prefetch; do
    for what in addition gather; do
        status=0
        LD_PRELOAD=$ODC_BUILD_DIR/tests/cli/libdrop_addition.so ODC_TEST_LOSE=$what "$odc" replay --lengths "$lengths" \
            --ranks 2 --minibatch 2 --minibatches 1 $calls --scale 65536 >"$scratch/out" 2>"$scratch/err" || status=$?
        if [ "$status" = 0 ] || ! grep -qE "sums are wrong|gathered parameter" "$scratch/err"; then
            echo "odc replay $calls ended with $status and did not notice that a part of a $what was lost:" >&2
            cat "$scratch/out" "$scratch/err" >&2
            exit 1
        fi
    done
done

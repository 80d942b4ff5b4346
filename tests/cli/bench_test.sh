#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# odc bench: it measures, checks its bytes and sums, and reports what it measured. Tiny sizes and no bars: the speed of this
# machine is not tested.
set -euo pipefail
trap 'echo "${BASH_SOURCE[0]##*/}:$LINENO: not so: $BASH_COMMAND" >&2' ERR

odc=${ODC:?names the odc command}
: "${ODC_SOURCE_DIR:?the folder of the sources}"
scratch=$(mktemp -d)
# shellcheck source=tests/harness/neighbours.sh
. "$ODC_SOURCE_DIR/tests/harness/neighbours.sh"
trap 'stop_neighbours; rm -rf "$scratch"' EXIT

# check_json FILE EXPRESSION: the expression is true of FILE's JSON object `j`.
check_json() {
    python3 - "$@" <<'PYTHON'
import json, os, sys
j = json.load(open(sys.argv[1]))

def documented(row):
    """The bar of that row of docs/performance.md."""
    with open(os.environ["ODC_SOURCE_DIR"] + "/docs/performance.md", encoding="utf-8") as lines:
        return float(next(line for line in lines if line.startswith(f"| {row} |")).split("|")[2].split()[1])

def interval(name, digits, unit=""):
    low, high = (f"{j[name + end]:.{digits}f}" for end in ("_low", "_high"))
    return f"{j[name]:.{digits}f}{unit} ({low} to {high})"

def concludes(verb, measured, bar):
    """The verdict follows from the measurement; `bar` is what it says of the bar."""
    share = j["others_cpu_share"]
    assert share is None or 0 <= share <= 1
    assert 0 <= j["pairs_repeated"] <= (j["pairs"] + 1) // 2
    assert j["verdict"] == (f"not resolved: {j['why_not_resolved']}" if not j["resolved"] else j["verdict"])
    assert j["resolved"] == (j["why_not_resolved"] is None)
    if share is not None and share > 0.2:
        used = f"other programs used {100 * share:.0f} % of the processors"
        return j["verdict"] == f"not resolved: {used}"
    if j["pairs"] < 6:
        return j["verdict"] == "not resolved: an interval needs 6 pairs: raise --pairs"
    return j["verdict"] == f"{verb} {measured}{bar}"

def reached(limit):
    bar = ""
    if "bar" in j:
        low, high = (j["ratio" + end] >= j["bar"] for end in ("_low", "_high"))
        bar = f"; bar {j['bar']:g}: {'met' if low else 'within the interval' if high else 'missed'}"
    return concludes("reached", f"{interval('ratio', 3)} of {limit}", bar)

def took():
    bar = ""
    if "bar" in j:
        low, high = (j["usec" + end] <= j["bar"] for end in ("_low", "_high"))
        bar = f"; bar {j['bar']:g} us: {'met' if high else 'within the interval' if low else 'missed'}"
    return concludes("took", interval("usec", 2, " us"), bar)

def made():
    low, high = (j["claims_per_second" + end] >= 2e6 for end in ("_low", "_high"))
    bar = f"; bar 2 million/s: {'met' if low else 'within the interval' if high else 'missed'}" if "bar" in j else ""
    middle, *ends = (1e-6 * j["claims_per_second" + end] for end in ("", "_low", "_high"))
    return concludes("made", f"{middle:.2f} million claims/s ({ends[0]:.2f} to {ends[1]:.2f})", bar)

if not eval(sys.argv[2]):
    sys.exit(f"not so: {sys.argv[2]}\nin {j}")
PYTHON
}

# refuses TEXT ARGUMENT...: odc bench fails with an error that contains TEXT.
refuses() {
    local text=$1
    shift
    if "$odc" bench "$@" >"$scratch/out" 2>&1; then
        echo "odc bench $* should have failed" >&2
        exit 1
    fi
    if ! grep -q -- "$text" "$scratch/out"; then
        echo "odc bench $* did not say \"$text\":" >&2
        cat "$scratch/out" >&2
        exit 1
    fi
}

# ratios_follow_verdict FILE: the table has its ratios, one at least, where its verdict is resolved, and none where it is not.
ratios_follow_verdict() {
    local ratio='[0-9]+\.[0-9]{3} \([0-9.]+ to [0-9.]+\)'
    if grep -q "^verdict: not resolved: " "$1"; then
        grep -qxE "  against itself +-" "$1"
        ! grep -vE "^verdict: |^         measured" "$1" | grep -E "$ratio|libodc reached"
    else
        grep -qxE "  against itself +$ratio" "$1"
    fi
}

race='min(j["gbps"], j["limit_gbps"], j["limit_self_ratio"]) > 0'
race+=' and 0 < j["ratio_low"] <= j["ratio"] <= j["ratio_high"] and j["limit"]'
verdict='reached("the bare copy" if j["op"] == "gather" else "the bare addition")'
# 65,544 bytes: the slices are unequal, and not multiples of a vector.
for operation in gather scatter-add; do
    for type in f32 bf16 f16 f64; do
        "$odc" bench $operation --ranks 3 --bytes 65544 --type $type --pairs 3 --json >"$scratch/json"
        check_json "$scratch/json" "$race"
        check_json "$scratch/json" "'bar' not in j and $verdict"
        check_json "$scratch/json" "(j['op'], j['ranks'], j['bytes'], j['type']) == ('$operation', 3, 65544, '$type')"
    done
done
# Exact sums, beside the default ones.
for type in f32 bf16 f16; do
    "$odc" bench scatter-add --sum exact --ranks 3 --bytes 65544 --type $type --pairs 3 --json >"$scratch/json"
    check_json "$scratch/json" "$race and j['sum'] == 'exact' and $verdict"
    check_json "$scratch/json" 'j["default_gbps"] > 0 and 0 < j["default_ratio_low"] <= j["default_ratio"] <= j["default_ratio_high"]'
done
"$odc" bench scatter-add --sum exact --bytes 64KiB --pairs 6 --sample-ms 1 >"$scratch/out"
head -n 1 "$scratch/out" | grep -q "^odc bench scatter-add: 64 KiB f32, exact sums, 2 ranks"
grep -qx "default sums  *[0-9.]* GB/s per rank" "$scratch/out"
ratios_follow_verdict "$scratch/out"
grep -q "^verdict: not resolved: " "$scratch/out" || grep -qE "^  libodc reached [0-9.]+ \([0-9.]+ to [0-9.]+\) of the default sums$" "$scratch/out"
"$odc" bench scatter-add --sum exact --transport fabric --bytes 65544 --pairs 3 --json >"$scratch/json"
check_json "$scratch/json" 'j["gbps"] > 0 and j["sum"] == "exact"'
# More ranks than elements: empty slices.
"$odc" bench scatter-add --ranks 3 --bytes 8 --pairs 1 --json >"$scratch/json"
check_json "$scratch/json" "$race"

"$odc" bench sync --ranks 2 --pairs 21 --json >"$scratch/json"
check_json "$scratch/json" 'j["op"] == "sync" and j["ranks"] == 2 and 0 < j["usec_low"] <= j["usec"] <= j["usec_high"]'
check_json "$scratch/json" 'j["bar"] == documented("sync, n = 2, both ready") and took()'
"$odc" bench sync --ranks 3 --pairs 21 --json >"$scratch/json"
check_json "$scratch/json" '"bar" not in j and took()'

"$odc" bench claim --pairs 6 --sample-ms 1 --json >"$scratch/json"
check_json "$scratch/json" 'j["bar"] == 1e6 * documented("claim, n = 2") and made() and j["limit_per_second"] > 0'
"$odc" bench claim --ranks 3 --pairs 6 --sample-ms 1 --json >"$scratch/json"
check_json "$scratch/json" '"bar" not in j and made() and 0 < j["ratio_low"] <= j["ratio"] <= j["ratio_high"]'
"$odc" bench claim --pairs 6 --sample-ms 1 >"$scratch/out"
grep -qx "odc bench claim: 2 ranks, 6 pairs of [0-9]* operations" "$scratch/out"
grep -qx "one atomic counter  *[0-9.]* M additions/s ([0-9.]* to [0-9.]*)" "$scratch/out"
refuses "a claim moves no bytes: leave --bytes out" claim --bytes 8
refuses "a claim moves no bytes: leave --memory cuda out" claim --memory cuda

# The bars are the documented ones, and the verdict is the first line of the table. Standard error, which is no terminal here,
# gets a line of progress every five seconds only.
for row in "gather f32" "scatter-add f32" "scatter-add bf16 → f32"; do
    read -r operation type _ <<<"$row"
    "$odc" bench $operation --type $type --bytes 64KiB --pairs 6 --sample-ms 1 --json >"$scratch/json" 2>"$scratch/err"
    check_json "$scratch/json" "j['bar'] == documented('$operation, 64 KiB ${row#* }, n = 2') and $verdict"
    test -z "$(grep -vE '^ *[0-9]+ %  ' "$scratch/err")"
done
"$odc" bench gather --pairs 1 --sample-ms 1 --json >"$scratch/json"
check_json "$scratch/json" 'j["bar"] == documented("gather, 64 MiB f32, n = 2") and reached("the bare copy")'
"$odc" bench gather --bytes 64KiB --pairs 6 --sample-ms 1 >"$scratch/out"
sed -n '/^$/{n;p;q}' "$scratch/out" | grep -q "^verdict: "
for line in "libodc  *[0-9.]* GB/s per rank" "bare copy  *[0-9.]* GB/s per rank (.*)"; do
    grep -qx "$line" "$scratch/out"
done
ratios_follow_verdict "$scratch/out"
# Too few pairs for a verdict, so for a ratio.
"$odc" bench scatter-add --sum exact --bytes 64KiB --pairs 5 --sample-ms 1 >"$scratch/out"
grep -qE "^verdict: not resolved: " "$scratch/out"
ratios_follow_verdict "$scratch/out"

# On a terminal one line of standard error shows the progress, and is removed at the end.
PYTHONPATH=$ODC_SOURCE_DIR/tests/harness python3 - "$odc" "$scratch/json" <<'PYTHON'
import sys, terminal

command = [sys.argv[1], "bench", "gather", "--bytes", "64KiB", "--pairs", "6", "--sample-ms", "1", "--json"]
status, out, shown = terminal.run(command)
open(sys.argv[2], "wb").write(out)
good = status == 0 and b"\n" not in shown and shown.endswith(b"\r\x1b[K")
if not good or not all(words in shown for words in (b"choosing the bare loop", b"pair 1 of 6")):
    sys.exit(f"on a terminal odc bench showed {shown}")
PYTHON
check_json "$scratch/json" 'reached("the bare copy")'

# Inside a job it joins: one object from rank 0.
"$odc" run -n 2 -- "$odc" bench gather --bytes 64KiB --pairs 2 --json >"$scratch/out"
sed 's/^[^{]*//' "$scratch/out" >"$scratch/json"
check_json "$scratch/json" 'j["ranks"] == 2 and j["bytes"] == 65536'
check_json "$scratch/json" '[(r["transport"], r["ranks"]) for r in j["routes"]] == [("shm", [1])]'

# Between hosts: on one machine each rank is a host; in a job of two hosts, one of which has two ranks; never by shm.
if "$odc" info | grep -q "fabric *ready"; then
    for operation in gather scatter-add; do
        for type in f32 bf16; do
            "$odc" bench $operation --transport fabric --ranks 3 --bytes 65544 --type $type --pairs 3 --json \
                >"$scratch/json"
            check_json "$scratch/json" '0 < j["gbps_low"] <= j["gbps"] <= j["gbps_high"] and not {"ratio", "verdict"} & j.keys()'
            check_json "$scratch/json" '[r["transport"] for r in j["routes"]] == ["fabric"] and j["routes"][0]["ranks"] == [1, 2] and j["hosts"]'
            check_json "$scratch/json" '0.6 < j["network_share"] < 0.7'
        done
    done
    "$odc" bench claim --transport fabric --pairs 3 --json >"$scratch/json"
    check_json "$scratch/json" '0 < j["usec_low"] <= j["usec"] <= j["usec_high"] and "verdict" not in j'
    "$odc" bench sync --transport fabric --pairs 21 >"$scratch/out"
    grep -q "^rank 0 to rank 1: fabric: " "$scratch/out"
    grep -q "no bare loop" "$scratch/out"
    export ODC_INTERFACE=lo
    apart=(--hosts a,b --via "env ODC_HOST_ID={host}" --address 127.0.0.1)
    "$odc" run -n 3 "${apart[@]}" -- "$odc" bench gather --bytes 64KiB --pairs 2 --json >"$scratch/out"
    sed 's/^[^{]*//' "$scratch/out" >"$scratch/json"
    check_json "$scratch/json" 'all(r["transport"] == "fabric" for r in j["routes"]) and "hosts" not in j'
    check_json "$scratch/json" 'sorted(sum((r["ranks"] for r in j["routes"]), [])) == [1, 2]'
    status=0
    "$odc" run -n 2 "${apart[@]}" -- "$odc" bench gather --transport shm >"$scratch/out" 2>&1 || status=$?
    test "$status" = 2
    grep -q "but the job's ranks are on several hosts; leave it out there" "$scratch/out"
    unset ODC_INTERFACE
else
    echo "between hosts: skipped, $("$odc" info | grep fabric)"
fi

# Without a launcher there is no job: a Slurm batch script, a stray or an empty variable.
for stray in SLURM_PROCID=0 RANK=0 PMI_RANK=0 ODC_RANK= OMPI_COMM_WORLD_RANK=; do
    env SLURM_JOB_ID=1 SLURM_NTASKS=1 $stray "$odc" bench gather --bytes 64KiB --pairs 1 --json >"$scratch/json"
    check_json "$scratch/json" 'j["ranks"] == 2'
done
env RANK=0 WORLD_SIZE=1 "$odc" bench gather --bytes 64KiB --pairs 1 --json >"$scratch/json"
check_json "$scratch/json" 'j["ranks"] == 1'

"$odc" bench gather --bytes 64KiB --pairs 6 --sample-ms 400 --json 2>"$scratch/err" >"$scratch/json" # three timings a pair
grep -qE '^ *[0-9]+ %  [0-9]+ s left  pair [2-9] of [6-9]' "$scratch/err"

# Beside programs that use all processors nothing is concluded, and disturbed pairs are repeated.
start_neighbours
if neighbours_are_busy; then
    for _ in 1 2 3; do # the times of /proc/stat may stand still, as when a virtual machine was stopped: then it tells nothing
        "$odc" bench gather --bytes 64KiB --pairs 7 --json >"$scratch/json"
        grep -q '"others_cpu_share": *null' "$scratch/json" || break
    done
    check_json "$scratch/json" 'j["others_cpu_share"] > 0.2 and j["pairs_repeated"] > 0 and reached("the bare copy")'
    "$odc" bench gather --bytes 64KiB --pairs 7 >"$scratch/out"
    grep -qx "verdict: not resolved: other programs used [0-9]* % of the processors" "$scratch/out"
    grep -qx "other programs  *[0-9]* % of the processors, pairs repeated: [1-4]" "$scratch/out"
    ratios_follow_verdict "$scratch/out"
fi
stop_neighbours

refuses "multiple of 4" gather --bytes 6
refuses '^odc: operation: "broadcast" is none of gather, scatter-add, sync, claim$' broadcast
refuses '^odc: operation: "gater" is none of gather, scatter-add, sync, claim; did you mean gather?$' gater
refuses "--ranks" gather --ranks 0
for wrong in -1 0 1.5MiB 64XB 4i MiB 99999999999999999999 16EiB 32EiB; do
    refuses "^odc: --bytes: \"$wrong\" is not a whole number of bytes.* from 1 to 1125899906842624$" gather --bytes "$wrong"
done
for size in 4096 4096b 4ki 4KiB; do
    "$odc" bench gather --bytes $size --pairs 1 --json >"$scratch/json"
    check_json "$scratch/json" 'j["bytes"] == 4096'
done
"$odc" bench gather --bytes 4kB --pairs 1 --json >"$scratch/json"
check_json "$scratch/json" 'j["bytes"] == 4000'
refuses '"x" is not a whole number from 1 to 1000000' gather --pairs x
refuses '^odc: --type: "int8" is none of f32, f64, bf16, f16$' gather --type int8
refuses '^odc: --transport: "tcp" is none of shm, fabric' gather --transport tcp
refuses '^odc: --sum: "close" is none of exact$' scatter-add --sum close
refuses "^odc: --sum exact is for scatter-add of f32, bf16 and f16$" gather --sum exact
refuses "^odc: --sum exact is for scatter-add of f32, bf16 and f16$" scatter-add --type f64 --sum exact
: >"$scratch/libfabric.so.1"
LD_LIBRARY_PATH=$scratch refuses "^odc: --transport fabric: libfabric.so.1 cannot be loaded: .*file too short$" gather --transport fabric
refuses "fewer --bytes" gather --bytes 1000TB
"$odc" bench --help >"$scratch/out"
grep -q "median" "$scratch/out"

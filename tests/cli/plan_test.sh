#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# odc plan: its JSON and table compared with an independent computation, from a file and from standard input, and its errors for
# bad lengths.
set -uo pipefail

odc=${ODC:?names the odc command}
lengths=${ODC_SOURCE_DIR:?}/tools/cli/stdlib-lengths.txt
# shellcheck source-path=SCRIPTDIR source=../harness/shell_checks.sh
. "$ODC_SOURCE_DIR/tests/harness/shell_checks.sh"

# plans POLICY A,B RANKS COUNT: the JSON of the first COUNT lengths is what the plan of these samples must be.
plans() {
    head -n "$4" "$lengths" | "$odc" plan --ranks "$3" --max-tokens 65536 --policy "$1" --cost "$2" --json - \
        >"$work/json" || fail "odc plan $* failed"
    python3 -c '
import json, sys
policy, cost, ranks, count, file, lengths = sys.argv[1:]
lengths = [int(line) for line in open(lengths)][: int(count)]
a, b = {"linear": (0, 1), "1.5b": (1.982122, 2.611821), "7b": (4.348357, 8.768377)}.get(cost) or map(float, cost.split(","))
plan = json.load(open(file))
assert set(plan) == {"policy", "makespan", "lower_bound", "collective_makespan", "ranks"}, set(plan)
assert plan["policy"] == policy and len(plan["ranks"]) == int(ranks)
price = [a * (s / 32000) ** 2 + b * s / 32000 for s in lengths]
seen = []
for rank in plan["ranks"]:
    assert set(rank) == {"cost", "microbatches"}, set(rank)
    for microbatch in rank["microbatches"]:
        assert microbatch and sum(lengths[i] for i in microbatch) <= 65536
    mine = [i for microbatch in rank["microbatches"] for i in microbatch]
    assert abs(rank["cost"] - sum(price[i] for i in mine)) <= 1e-9 * max(1, rank["cost"])
    seen += mine
assert sorted(seen) == list(range(len(lengths)))
costs = [rank["cost"] for rank in plan["ranks"]]
assert abs(plan["makespan"] - max(costs)) <= 1e-9 * max(costs)
assert plan["lower_bound"] <= plan["makespan"] * (1 + 1e-12)
assert plan["lower_bound"] >= max(max(price), sum(price) / int(ranks)) * (1 - 1e-12)
rows = [[sum(price[i] for i in microbatch) for microbatch in rank["microbatches"]] for rank in plan["ranks"]]
lockstep = sum(max(row[m] for row in rows if m < len(row)) for m in range(max(map(len, rows))))
assert abs(plan["collective_makespan"] - lockstep) <= 1e-9 * lockstep
if policy != "lb-mini":
    assert len({len(rank["microbatches"]) for rank in plan["ranks"]}) == 1
' "$@" "$work/json" "$lengths" || fail "the JSON of odc plan $* is wrong"
}
for policy in local-sort lb-micro lb-mini sorted-rows; do
    for cost in linear 1.5b 7b 0.5,2; do
        plans $policy $cost 4 32
    done
done
plans lb-mini 7b 16 3
plans local-sort linear 1 1

# Ranks of different speeds, and a tail: every sample once, the items in order, and what a rank is free for.
head -n 40 "$lengths" >"$work/few"
"$odc" plan --ranks 3 --cost 7b --speeds 1,1,0.5 --tail 0.25 --json "$work/few" >"$work/json" || fail "no tail is planned"
python3 -c '
import json, sys
lengths = [int(line) for line in open(sys.argv[1])]
plan = json.load(open(sys.argv[2]))
price = [4.348357 * (s / 32000) ** 2 + 8.768377 * s / 32000 for s in lengths]
items = [sum(price[i] for i in item) for item in plan["items"]]
assert items and items == sorted(items, reverse=True) and 0.2 * sum(price) < sum(items) <= 0.25 * sum(price)
seen = [i for item in plan["items"] for i in item] + [i for r in plan["ranks"] for m in r["microbatches"] for i in m]
assert sorted(seen) == list(range(len(lengths)))
speeds = [1.2, 1.2, 0.6]
loads = [rank["cost"] / speed for rank, speed in zip(plan["ranks"], speeds)]
for item in items:
    first = loads.index(min(loads))
    loads[first] += item / speeds[first]
assert abs(plan["makespan"] - max(loads)) <= 1e-9 * max(loads)
' "$work/few" "$work/json" || fail "the tail of odc plan is wrong"
expect 0 "$odc" plan --ranks 3 --speeds 1,1,0.5 --tail 0.25 "$work/few"
contains "$out" "   free"
contains "$out" "to claim"
contains "$out" "if ranks are as fast as planned and whoever is done first claims"
expect 2 "$odc" plan --ranks 3 --speeds 1,1 "$work/few"
contains "$err" "--speeds has 2 numbers, but there are 3 ranks; give one for each"
expect 2 "$odc" plan --ranks 3 --tail 2 "$work/few"
contains "$err" '--tail: "2" is not a number from 0 to 1'
expect 2 "$odc" plan --ranks 3 --tail 0.5 --policy lb-micro "$work/few"
contains "$err" "only LB-Mini leaves a"

# Several minibatches together: the plan of each is that of its samples alone, and what moved is as reported.
head -n 150 "$lengths" >"$work/window"
for order in "--most-moved 1 --most-displacement 16" --sorted "--most-moved 0.05" ""; do
    # shellcheck disable=SC2086
    "$odc" plan --ranks 8 --cost 7b --lookahead 4 $order --json "$work/window" >"$work/json" || fail "no window is planned"
    python3 -c '
import json, subprocess, sys
odc, file, lengths, order = sys.argv[1:]
lengths = [int(line) for line in open(lengths)]
plan = json.load(open(file))
flat = [[i for rank in one["ranks"] for micro in rank["microbatches"] for i in micro] for one in plan["minibatches"]]
assert [len(samples) for samples in flat] == [38, 38, 38, 36] and sorted(sum(flat, [])) == list(range(150))
moves = [abs(i // 38 - m) for m, samples in enumerate(flat) for i in samples]
assert abs(plan["moved"] - sum(map(bool, moves)) / 150) < 1e-9 and abs(plan["displacement"] - sum(moves) / 150) < 1e-9
assert plan["moved"] <= (0.05 if order == "--most-moved 0.05" else 0.2 if not order else 1)
assert plan["lower_bound"] <= plan["makespan"] <= plan["makespan_before"]
def rows(minibatches):
    command = [odc, "plan", "--ranks", "8", "--cost", "7b", "--policy", "sorted-rows", "--json", "-"]
    return sum(json.loads(subprocess.run(command, check=True, stdout=-1, text=True,
                                         input="".join(f"{lengths[i]}\n" for i in samples)).stdout)["collective_makespan"]
               for samples in minibatches)
same, before = rows(map(sorted, flat)), rows(range(first, min(first + 38, 150)) for first in range(0, 150, 38))
assert abs(plan["sorted_rows_makespan"] - same) < 1e-9 * same and same >= plan["makespan"] * (1 - 1e-9)
assert abs(plan["sorted_rows_makespan_before"] - before) < 1e-9 * before
for one, samples in zip(plan["minibatches"], map(sorted, flat)):
    alone = subprocess.run([odc, "plan", "--ranks", "8", "--cost", "7b", "--json", "-"], check=True, stdout=-1, text=True,
                           input="".join(f"{lengths[i]}\n" for i in samples))
    ranks = [[[samples.index(i) for i in micro] for micro in rank["microbatches"]] for rank in one["ranks"]]
    assert ranks == [rank["microbatches"] for rank in json.loads(alone.stdout)["ranks"]]
' "$odc" "$work/json" "$work/window" "$order" || fail "the window of odc plan --lookahead 4 $order is wrong"
done
"$odc" plan --ranks 8 --lookahead 2 "$work/window" >"$work/table" || fail "the window's table failed"
[ "$(grep -cE '^ +[01] +75 +[0-9]+ +[0-9.]+ +[0-9.]+ +[0-9.]+%$' "$work/table")" -eq 2 ] ||
    fail "not a row for each minibatch: $(cat "$work/table")"
grep -qE '^the best for collectives, sorted-rows in the same order [0-9.]+, .* times; each by itself [0-9.]+, .* times$' "$work/table" ||
    fail "does not compare with sorted rows: $(cat "$work/table")"
printf '1\n2\n3\n4\n' | "$odc" plan --ranks 8 --lookahead 2 - >"$work/few" || fail "no rows, and no window is planned"
! grep -q 'sorted-rows' "$work/few" || fail "4 samples have no sorted rows for 8 ranks: $(cat "$work/few")"
grep -q '^moved: .* % of the samples' "$work/table" || fail "does not say what moved: $(cat "$work/table")"

# What lookahead gains on a part of the lengths that odc replay has built in: planned, so always the same.
awk '!/^#/ && NR % 10 == 5' "$ODC_SOURCE_DIR/tools/cli/stdlib-lengths.txt" | head -n 64 >"$work/builtin"
"$odc" plan --ranks 8 --cost 7b --lookahead 2 --json "$work/builtin" >"$work/json" || fail "the built-in lengths are not planned"
python3 -c '
import json, sys
plan = json.load(open(sys.argv[1]))
assert plan["sorted_rows_makespan_before"] / plan["makespan"] >= 1.15 and plan["moved"] <= 0.2, plan
' "$work/json" || fail "lookahead does not lead sorted rows without it by 1.15 on the built-in lengths"

# The same from a file, twice; and the table.
"$odc" plan --ranks 4 --policy lb-mini --cost 7b --json "$lengths" >"$work/first" || fail "a file is not planned"
"$odc" plan --ranks 4 --policy lb-mini --cost 7b --json - <"$lengths" >"$work/second"
cmp -s "$work/first" "$work/second" || fail "a file and standard input give different plans"
"$odc" plan --ranks 3 --cost linear "$lengths" >"$work/table" || fail "the table failed"
[ "$(grep -cE '^ +[012] +[0-9]+ +[0-9]+ +[0-9]+ +[0-9.e+]+ +[0-9.]+%$' "$work/table")" -eq 3 ] ||
    fail "not a row for each rank: $(cat "$work/table")"
grep -q '^lb-mini: makespan .* times the lower bound' "$work/table" || fail "no summary: $(cat "$work/table")"

# refuses TEXT ARGUMENT...: status 2, one line that contains TEXT, nothing on stdout; standard input is passed on.
refuses() {
    local words=$1
    shift
    "$odc" plan "$@" >"$work/out" 2>"$work/err"
    local status=$?
    [ "$status" -eq 2 ] || fail "odc plan $* ended with $status, not 2"
    grep -qF -- "$words" "$work/err" && [ ! -s "$work/out" ] && [ "$(wc -l <"$work/err")" -eq 1 ] ||
        fail "odc plan $* does not say \"$words\": $(cat "$work/out" "$work/err")"
}
grep -q '^The command line is wrong, or what it names cannot be used: a file of lengths' "$ODC_SOURCE_DIR/tools/man/odc-plan.1" ||
    fail "the man page does not say that wrong lengths end with 2"
# line TEXT ERROR: a file whose second line is TEXT is refused with an error that names file and line.
line() {
    printf '100\n%b\n7\n' "$1" >"$work/lengths"
    refuses "$work/lengths:2: $2" --ranks 2 --max-tokens 4096 "$work/lengths"
}
line 'x' '"x" is not a positive whole number'
line '-5' '"-5" is not a positive whole number'
line '1 2' '"1 2" is not a positive whole number'
line '1.5' '"1.5" is not a positive whole number'
line '' 'the line is blank'
line '   ' 'the line is blank'
line '0' 'a length of 0'
line '99999999999999999999999' '99999999999999999999999 is more than 64 bits hold'
line '5000' "the sample's 5000 tokens are above the budget of 4096"
printf '100\r\n200\r\n7' | "$odc" plan --ranks 2 - >/dev/null || fail "CRLF and no newline at the end are refused"
: >"$work/empty"
refuses "no lengths in it" --ranks 2 "$work/empty"
refuses "cannot be opened" --ranks 2 "$work/none"
refuses "LB-Micro" --ranks 5 --policy lb-micro <(printf '1\n2\n3\n4\n')
refuses "--ranks: \"0\" is not a whole number from 1 to 1048576" --ranks 0 "$lengths"
for wrong in 0 -1 1e3 99999999999999999999999; do
    refuses "--max-tokens: \"$wrong\" is not a whole number from 1 to 9223372036854775807" --ranks 2 --max-tokens $wrong \
        "$lengths"
done
refuses "--ranks" "$lengths"
refuses "requires --lookahead" --ranks 2 --sorted "$lengths"
refuses "excludes" --ranks 2 --lookahead 2 --sorted --most-moved 0.5 "$lengths"
refuses "4 samples do not fill 8 minibatches" --ranks 1 --lookahead 8 <(printf '1\n2\n3\n4\n')
refuses "best" --ranks 2 --policy best "$lengths"
refuses "9b" --ranks 2 --cost 9b "$lengths"
refuses "nan" --ranks 2 --cost nan,1 "$lengths"

[ "$failures" -eq 0 ]

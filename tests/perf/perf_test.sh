#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The benchmarks of tests/perf run, each for a moment; compare.sh compares their results and refuses other files. Times are not
# checked.
set -u
: "${ODC_SOURCE_DIR:?the folder of the sources}" "${ODC_BUILD_DIR:?the folder of the build}"
# shellcheck source-path=SCRIPTDIR source=../harness/shell_checks.sh
. "$ODC_SOURCE_DIR/tests/harness/shell_checks.sh"
seconds=300
compare=$ODC_SOURCE_DIR/tests/perf/compare.sh

# ---- bad input ----
expect 2 "$ODC_SOURCE_DIR/tests/perf/run.sh"
contains "$err" "usage: tests/perf/run.sh RESULT.json"
expect 2 "$compare" "$work/one.json"
contains "$err" "usage: tests/perf/compare.sh BEFORE.json AFTER.json"
echo '{"benchmarks": [{"name": "copy/memcpy/4KiB", "real_time": 1.0}]}' >"$work/good.json"
echo '{"benchmarks": [{"name": "add/f32", "real_time": 1.0}]}' >"$work/other.json"
# refuses WORDS BEFORE AFTER
refuses() {
    expect 1 "$compare" "$work/$2" "$work/$3"
    same "$err" "$1"
}
refuses "$work/none.json cannot be read: No such file or directory" good.json none.json
refuses "$work/good.json and $work/other.json have no benchmark in common" good.json other.json
no_result=("" "{" "[]" "{}" '{"benchmarks": 7}' '{"benchmarks": [{}]}' '{"benchmarks": [{"name": "copy", "real_time": "fast"}]}')
for text in "${no_result[@]}"; do
    echo "$text" >"$work/bad.json"
    refuses "$work/bad.json is no result of Google Benchmark; write one with tests/perf/run.sh" bad.json good.json
done
echo '{"benchmarks": []}' >"$work/bad.json"
refuses "$work/bad.json has no benchmarks; did its run end early?" good.json bad.json

# ---- minibatches between hosts ----
minibatch=$ODC_BUILD_DIR/tests/perf/minibatch
hosts=$ODC_SOURCE_DIR/tests/harness/hosts.sh
expect 2 "$minibatch"
contains "$err" "usage: minibatch BYTES"
timeout 60 "$hosts" 1 -- true 2>"$work/err"
status=$?
if [ "$status" -ne 77 ]; then
    same "$status" 0
    expect 0 "$hosts" 2 -- "$hosts" ranks 4 "$minibatch" 1048576 2 1 2 bf16
    cp "$work/out" "$work/minibatch.json"
    expect 0 python3 - "$work/minibatch.json" <<'PYTHON'
import json, sys
found = json.load(open(sys.argv[1]))
assert (found["ranks"], found["bytes"], found["microbatches"], found["gathers"]) == (4, 1048576, 2, 1), found
flat, cached = found["flat"], found["cached"]
assert all(len(one[what]) == 2 and min(one[what]) > 0 for one in (flat, cached) for what in ("seconds", "received")), found
assert min(flat["received"]) > 2 * max(cached["received"]), found  # by formula 4 times
PYTHON
else
    echo "the minibatches between hosts are left out: $(tail -n 1 "$work/err")"
fi

# ---- the benchmarks ----
perf=$ODC_BUILD_DIR/tests/perf/perf
if [ ! -x "$perf" ]; then
    [ "$failures" -eq 0 ] || exit 1
    echo "$perf is not there: Google Benchmark was not found when it was configured (Debian: libbenchmark-dev)"
    exit 77
fi
expect 2 "$perf" --no-such-option
expect 0 "$perf" --benchmark_min_time=0.00001 --benchmark_repetitions=2 --benchmark_out="$work/before.json" --benchmark_out_format=json
expect 0 python3 - "$work/before.json" <<'PYTHON'
import collections, json, sys
benchmarks = json.load(open(sys.argv[1]))["benchmarks"]
for each in benchmarks:
    assert not each.get("error_occurred"), each
    assert each["real_time"] > 0 or each["run_type"] == "aggregate", each
families = collections.Counter(each["name"].split("/")[0] for each in benchmarks if each["run_type"] == "iteration")
assert set(families) == {"copy", "store", "add", "plan", "plan_window", "slices", "encode", "decode", "log"}, families
assert families["plan"] == 2 * 12 and families["plan_window"] == 2 * 10 and families["add"] >= 2 * 4 * 3, families
PYTHON

# ---- their comparison: what takes twice as long is +1.0 ----
python3 - "$work/before.json" "$work/after.json" <<'PYTHON'
import json, sys
result = json.load(open(sys.argv[1]))
for each in result["benchmarks"]:
    if each["name"] == "copy/memcpy/4KiB" and each["run_type"] == "iteration":
        each["real_time"] *= 2
        each["cpu_time"] *= 2
json.dump(result, open(sys.argv[2], "w"))
PYTHON
timeout "$seconds" "$compare" "$work/before.json" "$work/after.json" >"$work/out" 2>"$work/err"
status=$?
out=$(cat "$work/out")
if [ "$status" -eq 77 ]; then
    echo "the comparison is left out: $(tail -n 1 "$work/out")"
elif [ "$status" -ne 0 ]; then
    fail "compare.sh ended with $status: $out $(cat "$work/err")"
else
    [ "$(grep -cE '^copy/memcpy/4KiB +\+1\.0000 +\+1\.0000 ' "$work/out")" -eq 2 ] || fail "copy/memcpy/4KiB does not take twice as long: $out"
    [ "$(grep -cE '^plan/lb-mini/64_ranks +\+0\.0000 +\+0\.0000 ' "$work/out")" -eq 2 ] || fail "plan/lb-mini/64_ranks changed: $out"
fi
[ "$failures" -eq 0 ]

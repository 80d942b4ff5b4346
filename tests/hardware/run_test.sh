#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tests/hardware: what pack.sh packs runs by itself, and run.sh's stages write the promised results. On fake_cuda, disguised as
# a GPU's driver; tests that it does not support are skipped there as on an old GPU.
set -u
: "${ODC_SOURCE_DIR:?the folder of the sources}" "${ODC_BUILD_DIR:?the folder of the build}"
# shellcheck source-path=SCRIPTDIR source=../harness/shell_checks.sh
. "$ODC_SOURCE_DIR/tests/harness/shell_checks.sh"
command -v patchelf >/dev/null || { echo "patchelf was not found"; exit 77; }
command -v python3 >/dev/null || { echo "python3 was not found"; exit 77; }
disguise=$ODC_BUILD_DIR/tests/hardware/disguise
[ -e "$disguise/libcuda.so.1" ] || fail "$disguise has no libcuda.so.1"
python=python3
# With torch more can run.
[ ! -x "$ODC_SOURCE_DIR/build/python/bin/python" ] || python=$ODC_SOURCE_DIR/build/python/bin/python
seconds=280
export FAKE_CUDA_DELAY_US=10
tree=$work/gpu
run=(env "PYTHON=$python" "LD_LIBRARY_PATH=$disguise" bash "$tree/tests/hardware/run.sh")

# ---- pack.sh ----
expect 0 bash "$ODC_SOURCE_DIR/tests/hardware/pack.sh" "$ODC_BUILD_DIR" "$tree"
contains "$out" "of commit"
[ -s "$tree.tar.gz" ] || fail "there is no archive"
mkdir "$work/mine"
expect 1 bash "$ODC_SOURCE_DIR/tests/hardware/pack.sh" "$ODC_BUILD_DIR" "$work/mine"
contains "$err" "mine is there, and not made by this script"
expect 1 bash "$ODC_SOURCE_DIR/tests/hardware/pack.sh" "$work/mine" "$tree"
contains "$err" "cmake --preset release"
# All loaded libraries are in the folder or are the machine's own; none is from this tree.
for file in "$tree"/bin/* "$tree"/lib/*; do
    foreign=$(ldd "$file" | grep '=>' | grep -vE "=> $tree/|/lib(c|m|dl|pthread|rt|gcc_s|stdc\+\+)\.so")
    same "$foreign" ""
done
find "$tree" -name 'libcuda*' | grep . && fail "a driver was packed"

# ---- run.sh: bad input ----
expect 2 "${run[@]}" speed
contains "$err" "there is no stage 'speed'; there are environment, kill"
expect 2 env RUN_SECONDS=soon "${run[@]}" environment
contains "$err" "RUN_SECONDS is 'soon'; set it to the seconds"
if ! ldconfig -p | grep -q 'libcuda\.so\.1'; then
    expect 2 env LD_LIBRARY_PATH= "PYTHON=$python" bash "$tree/tests/hardware/run.sh" environment kill
    contains "$err" "no GPU can be used: there is no driver: libcuda.so.1"
fi
expect 2 env RESULTS_ARE_THE_PROJECTS=1 "${run[@]}" environment
contains "$err" "the driver is fake: set RESULTS"

# ---- the stages ----
export RESULTS=$work/results
stages=(environment "contract:2 ranks, 1" contract:routes kill:mapping growth sanitizer python "bars:gather 256" step example
    bulk multi)
expect 0 "${run[@]}" --short "${stages[@]}"
last=$(printf '%s\n' "$out" | tail -n 1)
"$python" - "$RESULTS" "$last" <<'PYTHON' || fail "the results are not as they should be"
import json, sys
from pathlib import Path

folder, last = Path(sys.argv[1]), sys.argv[2]
stages = {file.name.split(".")[0]: json.loads(file.read_text()) for file in folder.glob("*.json")}
names = "environment contract kill growth sanitizer python bars step example bulk multi".split()
assert sorted(stages) == sorted(names), sorted(stages)
for name, stage in stages.items():
    assert stage["complete"] and stage["fake"] and stage["short"] and stage["stage"] == name
    assert stage["gpus"][0]["name"] == "Fake GPU 0" and stage["cuda"] == "13.0" and stage["commit"] and stage["kernel"]
    assert stage["date"] and "dirty" in stage and "driver" in stage
    results = stage["results"]
    assert results, f"{name} has no results"
    for outcome in ("passed", "failed", "skipped"):
        assert stage[outcome] == sum(one["outcome"] == outcome for one in results)
    assert all(one["reason"] for one in results if one["outcome"] != "passed"), results
    verdicts = [bar["verdict"] for one in results for bar in one["figures"].get("bars", {}).values()]
    assert all(verdict.startswith("not judged") for verdict in verdicts), verdicts
for name in ("environment", "contract", "kill", "growth", "bars"):
    assert stages[name]["passed"], f"nothing of {name} passed: {stages[name]}"
for name in ("bulk", "multi"):
    assert stages[name]["skipped"], f"nothing of {name} was skipped"
PYTHON
contains "$last" " passed, 0 failed, "
echo "$last"

# ---- a late command is ended with all that it started, and the next ones run ----
"$python" - "$tree/tests/hardware" "$work/late" "$unique" <<'PYTHON' || fail "late commands are not treated as they should be"
import json, sys, time
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from runner import Command, Finished, Stage, junit, passed_if_it_ended_well, results_as_json
from stages import sanitized

folder = Path(sys.argv[2])
folder.mkdir()
late = f"echo up; sleep {sys.argv[3]} & sleep {sys.argv[3]}"
part = json.dumps({"results": [{"name": "its first", "outcome": "passed"}]})
commands = [
    Command("late", ["sh", "-c", late], passed_if_it_ended_well, 0.5, "so much"),
    Command("wrong", ["echo", "{"], results_as_json, 60, "it is short"),
    Command("part", ["sh", "-c", f"echo '{part}'; printf '{{'; exit 3"], results_as_json, 60, "it is short"),
    Command("bad", ["sh", "-c", "echo oops >&2; exit 3"], passed_if_it_ended_well, 60, "it is short"),
    Command("seen", ["sh", "-c", "echo now >&2; grep -q now \"$0\"", str(folder / "running.seen.err")],
            passed_if_it_ended_well, 60, "it is short"),
    Command("good", ["true"], passed_if_it_ended_well, 60, "it is short"),
    Command("absent", ["true"], passed_if_it_ended_well, 60, "it is short", missing="there is none"),
]
Stage("late", "", folder, {}).run(iter(commands))
stage = json.loads((folder / "late.json").read_text())
assert not list(folder.glob("running.*")), "a command that is done has left what it said"
reasons = {one["name"]: f"{one['outcome']}: {one['reason']}" for one in stage["results"]}
assert reasons.pop("late").startswith("failed: not done after 0 s; its limit is 0.5 s: so much"), stage
assert stage["complete"] and reasons == {
    "wrong": "failed: it printed no JSON; {",
    "its first": "passed: ",
    "part": "failed: ended with 3",
    "bad": "failed: ended with 3; oops",
    "seen": "passed: ",
    "good": "passed: ",
    "absent": "skipped: there is none",
}, reasons

# An interrupted pytest reports its completed tests; the last of a test's lines counts.
lines = [{"test": f"a.py::{test}", "outcome": outcome, "reason": "oops", "seconds": 1.0}
         for test, outcome in (("one", "passed"), ("two[b::c]", "passed"), ("one", "failed"))]
(folder / "lines").write_text("\n".join([*map(json.dumps, lines), '{"test": ']))
results = junit(folder / "no.xml", folder / "lines")(Finished("it", "", "", "late", 1.0))
assert [(one.name, one.outcome) for one in results] == [
    ("it: one", "failed"), ("it: two[b::c]", "passed"), ("it", "failed")], results
assert results[-1].reason == "pytest wrote no XML; 2 tests had ended, and are listed; late", results

# memcheck followed each rank.
for count, outcome in ((0, "failed"), (1, "failed"), (2, "passed"), (3, "passed")):
    [result] = sanitized(Finished("memcheck", "========= ERROR SUMMARY: 0 errors\n" * count, "", "", 1.0))
    assert result.outcome == outcome and (count >= 2 or f"followed {count} processes" in result.reason), result

# When the whole run's time is over nothing more is begun.
Stage("over", "", folder, {}, until=time.monotonic()).run(iter(commands))
stage = json.loads((folder / "over.json").read_text())
assert stage["complete"] and (stage["failed"], stage["skipped"]) == (6, 1), stage
assert all(one["reason"].startswith("not begun: ") for one in stage["results"][:6]), stage
PYTHON
nothing_left "sleep $unique"

# ---- a failure is reported with the output ----
export RESULTS=$work/failed
expect 1 env FAKE_CUDA_FAIL=cuMemCreate:0:2 "${run[@]}" --short "contract:2 ranks, 1"
contains "$out" "failed"
contains "$(cat "$RESULTS/contract.2-ranks-1.json")" "are free: this process may have too many descriptors"
contains "$(cat "$RESULTS/run.log")" "random_test"

[ "$failures" -eq 0 ] || exit 1
echo "tests/hardware packs and runs"

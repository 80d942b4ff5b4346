#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What tests/run.sh says at its end (counts.sh): each skip with its reason, the seconds of each step, and the counts.
set -u

# shellcheck source-path=SCRIPTDIR source=shell_checks.sh
. "${ODC_SOURCE_DIR:?the folder of the sources}/tests/harness/shell_checks.sh"

mkdir -p "$work/build/toy"
cd "$work" || exit 1
printf 'echo first\necho "skipped: there is no toy"\necho\nexit 77\n' >left_out
printf 'echo "skipped, the toy is here: why"\nexit 77\n' >there
cat >build/toy/CTestTestfile.cmake <<'TESTS'
add_test(good true)
add_test(bad sh -c "echo wrong; false")
add_test(toy/left_out sh ../../left_out)
add_test(toy/there sh ../../there)
set_tests_properties(toy/left_out toy/there PROPERTIES SKIP_RETURN_CODE 77)
TESTS
cat >steps.sh <<'STEPS'
. "$ODC_SOURCE_DIR/tests/harness/counts.sh"
waiting() {
    later later sh -c 'echo "there is no later"; exit 77'
}
lane waiting
check "fine" true
check "not here" sh -c 'echo before; echo "there is no tool" >&2; exit 77'
suite toy
binding snake sh -c 'echo "SKIPPED [2] tests/test_a.py:3: no torch"; echo "deb: skipped: no dpkg"; echo "3 passed, 2 skipped in 1.0 s"'
binding crab sh -c 'echo "cargo was not found"; exit 77'
check "behind" done_later later
check "broken" sh -c 'echo this; echo that; exit 1'
binding newt sh -c 'echo "E   3 is not 4"; echo "FAILED tests/test_b.py::test_c"; echo "3 passed, 1 failed in 1.0 s"; exit 1'
binding toad sh -c 'echo "no compiler"; exit 1'
suite toy -R none
summary
STEPS
expect 1 bash steps.sh
same "$(tail -n 1 <<<"$out")" "8 passed, 5 failed, 7 skipped"
same "$(grep '^skipped: ' <<<"$out" | sort)" "$(sort <<'SKIPS'
skipped: not here: there is no tool
skipped: toy/left_out: there is no toy
skipped: toy/there: the toy is here: why
skipped: snake: tests/test_a.py:3: no torch
skipped: snake: deb: no dpkg
skipped: crab: cargo was not found
skipped: behind: there is no later
SKIPS
)"
same "$(sed -n '/^failed: /,/passed,/p' <<<"$out" | sed '/^$/,$d')" "failed: bad
    wrong
failed: broken
    this
    that
failed: newt
    E   3 is not 4
    FAILED tests/test_b.py::test_c
failed: toad
    no compiler
failed: toy has no tests for -R none"
for step in fine "not here" "tests of toy" snake crab later; do
    grep -qE "^ +[0-9]+ +[0-9]+  $step\$" <<<"$out" || fail "the table has no seconds of '$step': $out"
done

printf '. "$ODC_SOURCE_DIR/tests/harness/counts.sh"\ncheck fine true\nsummary\n' >steps.sh
expect 0 bash steps.sh
same "$(tail -n 1 <<<"$out")" "1 passed, 0 failed"
same "$(grep -c skipped <<<"$out")" 0

# ---- tiers.sh: a build with a warning, without one, and one that fails ----
cat >build.sh <<'BUILD'
. "$ODC_SOURCE_DIR/tests/harness/counts.sh"
. "$ODC_SOURCE_DIR/tests/harness/tiers.sh"
build() {
    printf 'cc -Wall\n%s\n' "$said" >&2
    return "$ended"
}
build_release_without_warnings
BUILD
expect 0 env said=linked ended=0 bash build.sh
expect 1 env said="a.c:1:2: warning: unused variable" ended=0 bash build.sh
same "$(tail -n 1 <<<"$out")" "a.c:1:2: warning: unused variable"
expect 1 env said=linked ended=1 bash build.sh

[ "$failures" -eq 0 ]

# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# How run.sh runs steps and counts what they are: in $passed, $failed and $skipped. To be sourced in the root of the sources.

passed=0
failed=0
skipped=0
logs=$(mktemp -d)
TIMEFORMAT='%R %U %S'
lanes=() # process groups in the background
end_lanes() {
    local lane
    for lane in "${lanes[@]}"; do
        kill -- -"$lane" 2>/dev/null
    done
    rm -rf "$logs"
}
trap end_lanes EXIT

headline() {
    printf '\n==== %s (%s s)\n' "$1" "$SECONDS"
}

# timed NAME COMMAND...: for summary's table. What waits for a lane is timed there.
timed() {
    local name=$1 status=0 file=$logs/time.$BASHPID
    shift
    if [ "$1" = done_later ]; then
        "$@"
        return
    fi
    { time "$@" 2>&3 3>&-; } 3>&2 2>"$file" || status=$?
    echo "$(cat "$file") $name" >>"$logs/times"
    return "$status"
}

# fails NAME: one failed; the end of what it said is in $logs/output.
fails() {
    echo "FAILED: $1" >&2
    failed=$((failed + 1))
    { printf 'failed: %s\n' "$1" && grep . "$logs/output" | tail -n 15 | sed 's/^/    /'; } >>"$logs/failures"
}

# skips_of NAME: one was skipped; its last line, in $logs/output, says why.
skips_of() {
    printf '%s: %s\n' "$1" "$(grep . "$logs/output" | tail -n 1 | sed 's/^skipped[:,]* //')" >>"$logs/skips"
}

# check NAME COMMAND...: one thing that passes, fails, or is skipped: it ends with 77, and has said why in its last line.
check() {
    local name=$1 status
    shift
    headline "$name"
    timed "$name" "$@" 2>&1 | tee "$logs/output"
    status=${PIPESTATUS[0]}
    if [ "$status" -eq 77 ]; then
        skips_of "$name"
        skipped=$((skipped + 1))
    elif [ "$status" -eq 0 ]; then
        passed=$((passed + 1))
    else
        fails "$name"
        return 1
    fi
}

# endings LINES BUILD LOG PATTERN [-v but=PATTERN]: name, tab and line: the last ones of each test whose result matches.
endings() {
    local lines=$1 build=$2 log=$3 pattern=$4
    shift 4
    awk -v lines="$lines" -v pattern="$pattern" "$@" '
        NR == FNR {
            if (/ Test +#/ && $0 ~ pattern && (but == "" || $0 !~ but)) { sub(/.*#[0-9]+: /, ""); wanted[$1] = 1 }
            next
        }
        / Test: / { name = $3; count = inside = 0 }
        /^<end of output>/ {
            for (i = count < lines ? 1 : count - lines + 1; name in wanted && i <= count; i++) { print name "\t" said[i] }
            inside = 0
        }
        inside && NF && !/^-+$/ { said[++count] = $0 }
        /^Output:/ { inside = 1 }' "$log" "build/$build/Testing/Temporary/LastTest.log"
}

tests_at_once=$((1 + $(nproc)))
# suite BUILD ARGUMENT OF CTEST...: the tests of build/BUILD, counted one by one.
suite() {
    local build=$1 log=$logs/suite status total good left_out
    shift
    headline "tests of $build"
    timed "tests of $build" ctest --test-dir "build/$build" --output-on-failure -j "$tests_at_once" "$@" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    total=$(grep -cE '^ *[0-9]+/[0-9]+ Test +#' "$log")
    good=$(grep -cE '^ *[0-9]+/[0-9]+ Test +#.* Passed ' "$log")
    left_out=$(grep -cE '^ *[0-9]+/[0-9]+ Test +#.*\*\*\*Skipped ' "$log")
    passed=$((passed + good))
    skipped=$((skipped + left_out))
    endings 1 "$build" "$log" '[*]Skipped ' | sed -E 's/\t(skipped[:,] *)?/: /' >>"$logs/skips"
    endings 40 "$build" "$log" '[*]|[.][.]Not Run' -v but='[*]Skipped ' |
        awk -F '\t' '$1 != last { print "failed: " $1 } { last = $1; print "    " $2 }' >>"$logs/failures"
    failed=$((failed + total - good - left_out))
    : >"$logs/output"
    if [ "$total" -eq 0 ]; then
        fails "$build has no tests for $*"
    elif [ "$status" -ne 0 ] && [ $((good + left_out)) -eq "$total" ]; then
        fails "ctest ended with status $status, though every test that it named passed"
    fi
}

# binding NAME COMMAND...: counts the tests that its output reports; a failure before them counts as one.
binding() {
    local name=$1 log=$logs/output status
    shift
    headline "$name"
    timed "$name" "$@" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    if [ "$status" -eq 77 ]; then
        skips_of "$name"
        skipped=$((skipped + 1))
        return
    fi
    # The skips that pytest -rfEs prints, and those of parts in shell_checks.sh.
    sed -nE "s/^SKIPPED \[[0-9]+\] (.*)/$name: \1/p; s/^([^ ]+): skipped: /$name: \1: /p" "$log" >>"$logs/skips"
    counted() { grep -oE "[0-9]+ $1\b.* in " "$log" | awk '{ sum += $1 } END { print sum + 0 }'; }
    passed=$((passed + $(counted passed)))
    skipped=$((skipped + $(counted skipped)))
    failed=$((failed + $(counted failed)))
    if [ "$status" -eq 0 ]; then
        return
    elif [ "$(counted failed)" -eq 0 ]; then
        fails "$name"
    else
        { echo "failed: $name" && grep -E 'FAILED|^ERROR|^E  |: failed' "$log" | tail -n 30 | sed 's/^/    /'; } >>"$logs/failures"
    fi
}

# lane FUNCTION: runs it in the background; `done_later NAME` waits for what it runs by `later NAME`.
lane() {
    set -m
    (
        trap - EXIT
        "$1"
    ) &
    lanes+=($!)
    set +m
}

# later NAME COMMAND...: in a lane; what it said and its status are kept.
later() {
    local name=$1
    shift
    timed "$name" "$@" >"$logs/later_$name" 2>&1 </dev/null
    echo $? >"$logs/later_$name.status"
}

# done_later NAME: waits for it, says what it said, and ends as it did.
done_later() {
    local lane running=yes
    while [ ! -s "$logs/later_$1.status" ] && [ -n "$running" ]; do
        sleep 0.2
        running=
        for lane in "${lanes[@]}"; do
            ! kill -0 "$lane" 2>/dev/null || running=yes
        done
    done
    cat "$logs/later_$1"
    [ -s "$logs/later_$1.status" ] && return "$(cat "$logs/later_$1.status")"
}

summary() {
    printf '\n%8s %8s  %s\n' seconds CPU step
    awk '{ wall = $1; cpu = $2 + $3; sub(/^[^ ]+ [^ ]+ [^ ]+ /, ""); printf "%8.0f %8.0f  %s\n", wall, cpu, $0 }' "$logs/times"
    if [ -s "$logs/skips" ]; then
        echo
        sed 's/^/skipped: /' "$logs/skips"
    fi
    if [ -s "$logs/failures" ]; then
        echo
        cat "$logs/failures"
    fi
    local words="$passed passed, $failed failed"
    [ "$skipped" -eq 0 ] || words="$words, $skipped skipped"
    printf '\n%s\n' "$words"
    [ "$failed" -eq 0 ]
}

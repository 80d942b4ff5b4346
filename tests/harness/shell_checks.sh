# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the shell tests share, to be sourced: checks that count what failed and go on, so a test ends with
#   [ "$failures" -eq 0 ]
# A test has a folder of its own, $work, which is removed with it.

work=$(mktemp -d)
running= # what is bounded
trap '[ -z "$running" ] || { kill "$running"; wait "$running"; } 2>/dev/null; rm -rf "$work"' EXIT
failures=0
seconds=60 # that a command of `expect` may take
# shellcheck disable=SC2034 # A number that nothing else on this machine sleeps for, to find a test's processes by.
unique=$((100000 + RANDOM)).$$

fail() {
    echo "FAILED: $*" >&2
    failures=$((failures + 1))
}

# expect STATUS COMMAND...: runs it, output in $out and $err.
expect() {
    local wanted=$1 status
    shift
    timeout "$seconds" "$@" >"$work/out" 2>"$work/err"
    status=$?
    out=$(cat "$work/out")
    err=$(cat "$work/err")
    [ "$status" -eq "$wanted" ] || fail "'$*' ended with $status, not $wanted; it said: $out $err"
}

# bounded SECONDS COMMAND...: in the background, so that a test whose signals end it (trap 'exit 1' INT TERM) ends it, too;
# without standard input, and deaf to Ctrl-C. Not in a subshell.
bounded() {
    local status
    timeout -k 30 "$@" &
    running=$!
    wait "$running"
    status=$?
    running=
    return "$status"
}

contains() {
    case $1 in
    *"$2"*) ;;
    *) fail "'$2' is not in: $1" ;;
    esac
}

same() {
    [ "$1" = "$2" ] || fail "got '$1', not '$2'"
}

# functions_of HEADER: what it declares ODC_API, in its order.
functions_of() {
    sed -n 's/^ODC_API [^(]*[ *]\(odc_[a-z0-9_]*\)(.*/\1/p' "$1"
}

# needs TOOL[:PACKAGE]...: else $why says which is missing, and which of Debian's packages has it.
needs() {
    local tool
    for tool in "$@"; do
        command -v "${tool%:*}" >/dev/null && continue
        why="${tool%:*} was not found"
        [ "$tool" = "${tool%:*}" ] || why="$why (Debian: ${tool#*:})"
        return 1
    done
}

# parts NAME...: runs part_NAME of each and says how it went: skipped, for $why, if it ends with 77. Counts in $passed,
# $failed and $skipped.
parts() {
    local part status before began
    passed=0 failed=0 skipped=0
    for part; do
        why=
        before=$failures
        began=$SECONDS
        "part_$part"
        status=$?
        if [ "$status" -eq 77 ]; then
            echo "$part: skipped: $why"
            skipped=$((skipped + 1))
        elif [ "$status" -eq 0 ] && [ "$failures" -eq "$before" ]; then
            echo "$part: good ($((SECONDS - began)) s)"
            passed=$((passed + 1))
        else
            echo "$part: FAILED ($((SECONDS - began)) s)"
            failed=$((failed + 1))
        fi
    done
    echo "$passed passed, $failed failed, $skipped skipped in $SECONDS s"
    [ "$failed" -eq 0 ]
}

# Waits until no process has $1 on its command line.
nothing_left() {
    local tries
    for tries in $(seq 300); do
        pgrep -f -- "$1" >/dev/null || return 0
        sleep 0.1
    done
    fail "a process is left after $tries tries: $(pgrep -af -- "$1")"
}

# Waits for a file to have $2 lines.
wait_for_lines() {
    local tries
    for tries in $(seq 300); do
        [ "$(cat "$1" 2>/dev/null | wc -l)" -ge "$2" ] && return 0
        sleep 0.1
    done
    fail "$1 has not got $2 lines after $tries tries"
}

# compares_all SOURCE HEADER LEAST: each enumerator and constant of the header, so many at least, is named in the source,
# which compares them. Their number in $values.
compares_all() {
    local names name
    names=$(awk '
        /^enum class/ { type = $3; inside = 1 }
        inside {
            line = $0
            while (match(line, /[A-Za-z0-9]+ = /)) {
                print type "::" substr(line, RSTART, RLENGTH - 3)
                line = substr(line, RSTART + RLENGTH)
            }
        }
        /};/ { inside = 0 }' "$2"
        sed -n 's/.*\<\(k[A-Z][A-Za-z0-9]*\) = .*/\1/p' "$2")
    values=$(wc -w <<<"$names")
    [ "$values" -ge "$3" ] || fail "only these enumerators were found in $2: $names"
    for name in $names; do
        grep -q "\<$name\>" "$1" || fail "$1 does not compare $name"
    done
}

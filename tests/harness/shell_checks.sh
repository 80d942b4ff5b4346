# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Shared by the shell tests, to be sourced: checks that count failures and go on, so a test ends with
#   [ "$failures" -eq 0 ]
# A test has its own folder, $work, which is removed at its end.

work=$(mktemp -d)
running= # the process of `bounded`
trap '[ -z "$running" ] || { kill "$running"; wait "$running"; } 2>/dev/null; rm -rf "$work"' EXIT
failures=0
seconds=60 # the limit of a command of `expect`
# shellcheck disable=SC2034 # A duration for `sleep` unique on this machine, by which a test finds its processes.
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

# bounded SECONDS COMMAND...: runs it in the background, so that a test with a trap (trap 'exit 1' INT TERM) can end it, too;
# without standard input, and ignoring Ctrl-C. Not for a subshell.
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

# functions_of HEADER: the functions that it declares ODC_API, in its order.
functions_of() {
    sed -n 's/^ODC_API [^(]*[ *]\(odc_[a-z0-9_]*\)(.*/\1/p' "$1"
}

# needs TOOL[:PACKAGE]...: fails if one is missing; $why then names it and its Debian package.
needs() {
    local tool
    for tool in "$@"; do
        command -v "${tool%:*}" >/dev/null && continue
        why="${tool%:*} was not found"
        [ "$tool" = "${tool%:*}" ] || why="$why (Debian: ${tool#*:})"
        return 1
    done
}

# parts NAME...: runs part_NAME of each and reports the result; exit status 77 means skipped for $why. Counts in $passed,
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

# Waits until no process has $1 in its command line.
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

# compares_all SOURCE HEADER LEAST: fails unless the source compares each enumerator and constant of the header, at least LEAST.
# Their number is in $values.
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

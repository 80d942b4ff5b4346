#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs random_test (PROGRAM, of a build) with all kinds of ranks and faults in turn, CALLS calls together (default 1000000). Prints
# what each run did. A failure prints the seed and the options that repeat it, and the other runs go on.
#
# usage: tests/contract/random_long.sh PROGRAM [CALLS]
set -u
# shellcheck source-path=SCRIPTDIR source=../harness/usage.sh
. "$(dirname "$0")/../harness/usage.sh"
takes 1 2 "$@"

program=$1
calls=${2:-1000000}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0

# Calls in thousandths of CALLS, and the options. Jobs between hosts and jobs with kills spend their time in joining.
variants=(
    '200 --processes'
    '150 --threads'
    '150 --processes --interruptions'
    '150 --threads --interruptions'
    '120 --processes --one-cpu --signals --interruptions'
    '120 --threads --one-cpu --signals --interruptions'
    '40 --kills'
    '30 --kills --one-cpu --signals --interruptions'
    '12 --hosts 2 --interruptions'
    '10 --hosts 3 --ranks 5 --signals --interruptions'
    '8 --hosts 99 --interruptions'
    '6 --hosts 2 --threads --interruptions'
    '2 --hosts 2 --kills'
    '2 --hosts 99 --kills --interruptions'
)

for variant in "${variants[@]}"; do
    read -ra options <<<"${variant#* }"
    options=(--calls $((calls * ${variant%% *} / 1000)) "${options[@]}")
    begin=$SECONDS
    if ! "$program" "${options[@]}" >"$log" 2>&1; then
        failed=$((failed + 1))
        cat "$log"
        echo "FAILED: $program ${options[*]}"
    fi
    printf '%s (%s s)\n    %s\n' "${options[*]}" $((SECONDS - begin)) "$(grep '^jobs ' "$log")"
done
echo "$failed of ${#variants[@]} failed"
[ "$failed" -eq 0 ]

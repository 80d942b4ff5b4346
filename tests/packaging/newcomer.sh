#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a newcomer does with the README's commands alone, in a fresh system: `bare_root.sh newcomer` runs this there. The last four
# lines are the seconds to the first table, to the first picture of own lengths, to the first FSDP2 program and to the demo's end.
# By hand, as times depend on the network and on what else runs. `newcomer.sh commands` only prints the README's commands.
set -eu -o pipefail
cd "$(dirname "$0")/../.."

# Whether the README shows the command.
shown() { sed -n "s/^\($1\) *#.*/\1/p" README.md; }
table=$(shown 'tools\/demo\.sh lengths')
demo=$(shown 'tools\/demo\.sh --quick')
torch=$(sed -n 's/.*`\(tests\/venv\.sh torch\)`.*/\1/p' README.md)
program=$(sed -n 's/.*`\(build\/python\/bin\/odc run [^`]*minimal_fsdp2\.py\)`.*/\1/p' README.md)
[ -n "$table" ] && [ -n "$demo" ] && [ -n "$torch" ] && [ -n "$program" ] ||
    { echo "README.md has not the four commands" >&2; exit 1; }
if [ "${1-}" = commands ]; then
    printf '%s\n' "$table" "$torch" "$program" "$demo"
    exit
fi

seconds=()
SECONDS=0
eval "$table --picture build/first.svg"
seconds+=("$SECONDS")

find /usr/lib/python3* -name '*.py' -size +0 -size -65536c -printf '%s\n' >build/own_lengths
eval "$table --lengths build/own_lengths --picture build/own.svg"
[ -s build/own.svg ]
seconds+=("$SECONDS")

eval "$torch"
eval "$program"
seconds+=("$SECONDS")

eval "$demo"
printf '%s s\n' "first table: ${seconds[0]}" "first own picture: ${seconds[1]}" "first own FSDP2 program: ${seconds[2]}" \
    "the demo's end: $SECONDS"

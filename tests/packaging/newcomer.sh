#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a newcomer does with the README's commands alone, in a fresh system: `bare_root.sh newcomer` runs this there. The last three
# lines are the seconds to the first table, to the first picture of own lengths and to the first FSDP2 program. By hand, as
# times depend on the network and on what else runs.
set -eu -o pipefail
cd "$(dirname "$0")/../.."

demo=$(sed -n 's/^\(tools\/demo\.sh[^#]*[^# ]\) *#.*/\1/p' README.md)
picture=$(sed -n 's/.*`\(python -m libodc demo\)`.*/\1/p' README.md)
program=$(sed -n 's/.*`\(build\/python\/bin\/odc run [^`]*minimal_fsdp2\.py\)`.*/\1/p' README.md)
[ -n "$demo" ] && [ -n "$picture" ] && [ -n "$program" ] || { echo "README.md has not the three commands" >&2; exit 1; }

seconds=()
SECONDS=0
while IFS= read -r line; do
    echo "$line"
    [[ ${#seconds[@]} -gt 0 || $line != *tokens/s* ]] || seconds+=("$SECONDS")
done < <(eval "$demo" 2>&1)
[ ${#seconds[@]} -eq 1 ] || { echo "$demo has shown no table" >&2; exit 1; }

find /usr/lib/python3* -name '*.py' -size +0 -size -65536c -printf '%s\n' >build/own_lengths
eval "build/python/bin/$picture --lengths build/own_lengths --picture build/own.svg"
[ -s build/own.svg ]
seconds+=("$SECONDS")

eval "$program"
printf '%s s\n' "first table: ${seconds[0]}" "first own picture: ${seconds[1]}" "first own FSDP2 program: $SECONDS"

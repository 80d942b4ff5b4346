#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The C example of README.md compiles as C99 without a warning and runs as four ranks, and the table of odc replay is
# what it prints, but for the figures.
set -u
: "${ODC_SOURCE_DIR:?the folder of the sources}" "${ODC_BUILD_DIR:?the folder of the build}" "${ODC:?the odc command}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

awk '/^```c$/ {inside = 1; next} /^```$/ {if (inside) exit} inside' "$ODC_SOURCE_DIR/README.md" >"$work/example.c"
grep -q 'int main(' "$work/example.c" || { echo "the first \`\`\`c block of README.md is not a program" >&2; exit 1; }
"${CC:-cc}" -std=c99 -Wall -Wextra -Wpedantic -Werror -I"$ODC_SOURCE_DIR/include" "$work/example.c" -o "$work/example" \
    -L"$ODC_BUILD_DIR/lib" -lodc -Wl,-rpath,"$ODC_BUILD_DIR/lib" || exit 1
timeout 60 "$ODC" run -n 4 -- "$work/example" || { echo "the example ended with status $?" >&2; exit 1; }

# The figures and the columns' widths do not matter.
form() { sed -E 's/[0-9]+(\.[0-9]+)?(e[+-][0-9]+)?/N/g; s/ +/ /g' "$1"; }

sed -n '/^emulated device/,/^```$/p' "$ODC_SOURCE_DIR/README.md" | sed '$d' >"$work/shown"
timeout 60 "$ODC" replay --lengths "$ODC_SOURCE_DIR/tests/data/stdlib-lengths.txt" --ranks 2 --minibatch 2 \
    --minibatches 1 --seconds 0.5 >"$work/printed" 2>"$work/err" || { cat "$work/err" >&2; exit 1; }
diff <(form "$work/shown") <(form "$work/printed") || { echo "README.md does not show what odc replay prints" >&2; exit 1; }

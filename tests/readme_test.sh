#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The C example of README.md compiles as C99 without a warning and runs as four ranks.
set -u
: "${ODC_SOURCE_DIR:?the folder of the sources}" "${ODC_BUILD_DIR:?the folder of the build}" "${ODC:?the odc command}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

awk '/^```c$/ {inside = 1; next} /^```$/ {if (inside) exit} inside' "$ODC_SOURCE_DIR/README.md" >"$work/example.c"
grep -q 'int main(' "$work/example.c" || { echo "the first \`\`\`c block of README.md is not a program" >&2; exit 1; }
"${CC:-cc}" -std=c99 -Wall -Wextra -Wpedantic -Werror -I"$ODC_SOURCE_DIR/include" "$work/example.c" -o "$work/example" \
    -L"$ODC_BUILD_DIR/lib" -lodc -Wl,-rpath,"$ODC_BUILD_DIR/lib" || exit 1
timeout 60 "$ODC" run -n 4 -- "$work/example" || { echo "the example ended with status $?" >&2; exit 1; }

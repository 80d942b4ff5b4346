#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# odc.h compiles by itself in each C and C++ standard with each installed compiler, without a warning and without implicit
# padding.
set -u
include=${ODC_SOURCE_DIR:?the folder of the sources}/include
lines=$(wc -l <"$include/odc/odc.h")
[ "$lines" -le 320 ] || { echo "odc.h has $lines lines, more than 320" >&2; exit 1; }
warnings="-Wall -Wextra -Wpedantic -Wpadded -Wconversion -Werror"
failed=0
compiled=0

try() {
    local compiler=$1 language=$2 standard=$3
    command -v "$compiler" >/dev/null || return 0
    # shellcheck disable=SC2086
    if printf '#include <odc/odc.h>\nint unit_is_not_empty;\n' |
        "$compiler" -x "$language" -std="$standard" $warnings -fsyntax-only -I"$include" -; then
        compiled=$((compiled + 1))
    else
        echo "odc.h does not compile with $compiler -std=$standard $warnings" >&2
        failed=1
    fi
}

for standard in c99 c11 c17; do
    try gcc c $standard
    try clang c $standard
done
for standard in c++11 c++14 c++17 c++20; do
    try g++ c++ $standard
    try clang++ c++ $standard
done
[ "$compiled" -gt 0 ] || { echo "no compiler was found" >&2; exit 1; }
[ "$failed" -eq 0 ] || exit 1
echo "odc.h compiles in $compiled ways"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lint.sh format: clang-format of all C, C++ and CUDA, as in .pre-commit-config.yaml, and ruff's check and format of all Python
# where build/python has it.
# lint.sh tidy: clang-tidy of lib/ and tools/. Exits with 77, and the reason in the last line, where a tool is missing.
#
# usage: tests/harness/lint.sh format|tidy
set -u
# shellcheck source-path=SCRIPTDIR source=usage.sh
. "$(dirname "$0")/usage.sh"
cd "$(dirname "$0")/../.." || exit 1

needs() {
    command -v "$1" >/dev/null || { echo "$1 was not found"; exit 77; }
}

# Not odc.h: the columns of its comments are set by hand.
format() {
    local status=0 ruff=build/python/bin/ruff
    needs clang-format-14
    find bindings cuda include lib packaging tests tools \( -name build -o -name target \) -prune -o -type f -print |
        grep -E '\.(c|cc|h|hpp|cu)$' | grep -vE '^(include/odc/odc\.h$|packaging/abi/previous/)' |
        xargs clang-format-14 --dry-run --Werror || status=1
    if [ -x $ruff ]; then
        $ruff check --quiet || status=1
        $ruff format --check --quiet || status=1
    fi
    return $status
}

# Several files in one translation unit: most time is spent on their includes.
tidy() {
    local status words
    needs clang-tidy-14
    rm -rf build/lint
    cmake --preset release -B build/lint -DODC_TOOLS=ON -DODC_TESTS=OFF >/dev/null || return 1
    words=$(find build/lint -path '*/Unity/*.cxx' -print0 |
        xargs -0 -P "$(nproc)" -n 1 clang-tidy-14 -p build/lint --quiet 2>&1)
    status=$?
    grep -v 'warnings generated\|Suppressed\|Use -header-filter' <<<"$words" >&2
    no_unused_using || status=1
    return $status
}

# clang-tidy reports these only for the main file, which here includes several.
no_unused_using() {
    local file name found=0
    while read -r file; do
        while read -r name; do
            [ "$(grep -cw "$name" "$file")" -gt 1 ] || { echo "$file: using names $name, which is not used" >&2; found=1; }
        done < <(sed -n 's/^using [^=]*::\([A-Za-z_]*\);$/\1/p' "$file")
    done < <(find lib tools -name '*.cc')
    return "$found"
}

case "$*" in
format | tidy) "$1" ;;
*) wrong_usage ;;
esac

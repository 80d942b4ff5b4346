#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A check of a commit whose tool is missing is skipped and says how to get it; else what the tool returns is the result.
set -u
# shellcheck source-path=SCRIPTDIR source=shell_checks.sh
. "${ODC_SOURCE_DIR:?the folder of the sources}/tests/harness/shell_checks.sh"

mkdir -p "$work/tree/tests/harness" "$work/bin"
cp "$ODC_SOURCE_DIR"/tests/harness/{commit_check,usage}.sh "$work/tree/tests/harness/"
cd "$work/tree" || exit 1
for tool in bash sed dirname; do
    ln -s "$(command -v $tool)" "$work/bin/"
done
commit_check=(env PATH="$work/bin" bash tests/harness/commit_check.sh)

while IFS='|' read -r check missing how; do
    expect 0 "${commit_check[@]}" "$check" a b
    same "$out" "skipped: $missing; to get it: $how"
    same "$err" ""
done <<'END'
clang-format|clang-format-14 was not found|bash tests/install.sh test
clang-tidy|clang-tidy-14 was not found|bash tests/install.sh full
ruff|build/python/bin/ruff was not found|bash tests/venv.sh checks
rustfmt|rustfmt was not found|bash tests/install.sh full
END

# Tools that print what they are called with, and find something in the file `wrong`.
mkdir -p build/python/bin
for tool in "$work"/bin/{clang-format-14,clang-tidy-14,rustfmt} build/python/bin/ruff; do
    printf '%s\n' '#!/bin/bash' 'echo "$@"' '[[ " $* " != *" ${TELL-}wrong "* ]]' >"$tool"
    chmod +x "$tool"
done
expect 0 "${commit_check[@]}" clang-tidy a
same "$out" "skipped: build/debug was not configured; to get it: cmake --preset debug -DODC_TOOLS=ON"
mkdir -p build/debug
touch build/debug/compile_commands.json
for check in clang-format clang-tidy ruff rustfmt; do
    expect 0 "${commit_check[@]}" $check a b
    contains "$out" "a b"
    expect 1 "${commit_check[@]}" $check a wrong
done
for step in "check" "format --check"; do # one of ruff's finds something
    TELL="$step " expect 1 "${commit_check[@]}" ruff wrong
done
TELL="lint " expect 0 "${commit_check[@]}" ruff wrong
expect 2 "${commit_check[@]}" lint a

[ "$failures" -eq 0 ]

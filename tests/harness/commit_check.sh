#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A check of .pre-commit-config.yaml, of the files of a commit. Where its tool is missing it says how to get it, and ends with 0.
#
# usage: tests/harness/commit_check.sh clang-format|clang-tidy|ruff|rustfmt FILE...
set -u
# shellcheck source-path=SCRIPTDIR source=usage.sh
. "$(dirname "$0")/usage.sh"
takes 2 1000000 "$@"
cd "$(dirname "$0")/../.." || exit 1

# needs TOOL COMMAND: which makes it.
needs() { command -v "$1" >/dev/null || skip "$1 was not found" "$2"; }
skip() {
    echo "skipped: $1; to get it: $2"
    exit 0
}

check=$1
shift
case $check in
clang-format)
    needs clang-format-14 "bash tests/install.sh test"
    clang-format-14 --dry-run --Werror "$@"
    ;;
clang-tidy) # as build/debug was configured: there each file is compiled by itself
    needs clang-tidy-14 "bash tests/install.sh full"
    [ -e build/debug/compile_commands.json ] ||
        skip "build/debug was not configured" "cmake --preset debug -DODC_TOOLS=ON"
    clang-tidy-14 -p build/debug --quiet "$@"
    ;;
ruff)
    ruff=build/python/bin/ruff
    needs $ruff "bash tests/venv.sh checks"
    $ruff check "$@"
    status=$?
    $ruff format --check "$@" && exit $status
    ;;
rustfmt)
    needs rustfmt "bash tests/install.sh full"
    rustfmt --check --edition 2021 "$@"
    ;;
*) wrong_usage ;;
esac

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds in build/release what the tests need, runs them, and prints a summary in the last line.
#
# usage: tests/run.sh [quick | system | release | full | NAME...]
#             the tests before a commit; installs what is missing
#   quick     a part of them, in less than a minute
#   system    the default without the programs that quick leaves out: what another system can change
#   release   every test of the release build, the format and the Rust crates; installs what is missing
#   full      every test and check: sanitizers, bindings, packages, emulated processors, a bare Debian
#   NAME...   only these: tests of ctest (contract/phases, or phases if only one folder has it; unit/ is all of a folder), or
#             files or functions of bindings/python/tests
set -u
# shellcheck source-path=SCRIPTDIR source=harness/usage.sh
. "$(dirname "$0")/harness/usage.sh"
cd "$(dirname "$0")/.." || exit 1
takes 0 $# "$@"
tier=named
case "${1-}" in
'') tier=commit ;;
quick | system | release | full)
    tier=$1
    [ $# -eq 1 ] || {
        echo "run.sh: the tier $1 takes no more arguments: ${*:2}" >&2
        exit 2
    }
    ;;
esac
if [ -z "${ODC_TEST_CHEAP_READS-}" ] && unshare --mount true 2>/dev/null; then
    export ODC_TEST_CHEAP_READS=yes
    exec bash tests/harness/cheap_reads.sh bash tests/run.sh "$@"
fi
# shellcheck source=tests/harness/counts.sh
. tests/harness/counts.sh
# shellcheck source=tests/harness/tiers.sh
. tests/harness/tiers.sh
# shellcheck source=tests/harness/compiler_cache.sh
. tests/harness/compiler_cache.sh
# shellcheck source=tests/harness/bytecode.sh
. tests/harness/bytecode.sh

if [ $tier = named ]; then
    tier_named "$@" || exit 2
else
    tier_$tier
fi
summary

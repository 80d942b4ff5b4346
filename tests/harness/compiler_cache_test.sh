#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# compiler_cache.sh lets ccache work for a user whose home is not writable, does not move a writable cache, and names it also for
# a build with another home, as that of a Debian package.
set -u
: "${ODC_SOURCE_DIR:?the folder of the sources}"
# shellcheck source-path=SCRIPTDIR source=shell_checks.sh
. "$ODC_SOURCE_DIR/tests/harness/shell_checks.sh"
command -v ccache >/dev/null || { echo "ccache was not found (Debian: ccache)"; exit 77; }
cd "$work" || exit 1
echo 'int main(void) { return 0; }' >main.c
mkdir "$work/home"

# compiles HOME: prints the cache's folder.
compiles() {
    expect 0 env -i PATH="$PATH" HOME="$1" bash -c '. "$0"
        HOME=/nowhere "$CMAKE_C_COMPILER_LAUNCHER" cc -c main.c && HOME=/nowhere ccache --get-config cache_dir' \
        "$ODC_SOURCE_DIR/tests/harness/compiler_cache.sh"
}
compiles /proc # not even root can write there
same "$out" "$work/build/ccache"
compiles "$work/home"
same "$out" "$work/home/.cache/ccache"
[ "$failures" -eq 0 ]

# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Lets CMake compile through ccache if it is installed. Source it in the folder to which ccache is to make paths relative:
# objects are then shared with builds in other folders at the same depth (build/*).
export CCACHE_BASEDIR=$PWD CCACHE_SLOPPINESS=locale # a bare root has none
if command -v ccache >/dev/null; then
    export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
    # By name, as dh gives a package's build a home of its own.
    CCACHE_DIR=$(ccache --get-config cache_dir)
    # ccache fails where it cannot write, for example in the home of a user who has none.
    { mkdir -p "$CCACHE_DIR" && [ -w "$CCACHE_DIR" ]; } 2>/dev/null || CCACHE_DIR=$PWD/build/ccache
    export CCACHE_DIR
fi

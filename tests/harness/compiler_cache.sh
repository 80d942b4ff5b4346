# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Lets CMake compile through ccache, where there is one. To be sourced in the folder that ccache takes paths to be relative
# to: it knows an object again in another folder, if that is as far from the sources (build/* and what is like it).
export CCACHE_BASEDIR=$PWD
if command -v ccache >/dev/null; then
    export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
    # ccache fails where it cannot write, such as in the home of a user who has none.
    ccache_folder=$(ccache --get-config cache_dir)
    { mkdir -p "$ccache_folder" && [ -w "$ccache_folder" ]; } 2>/dev/null || export CCACHE_DIR=$PWD/build/ccache
fi

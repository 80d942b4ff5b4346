#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes plain_add.ptx from plain_add.cu in the given folder: `make_ptx.sh tools/gpu/kernels`. Needs nvcc; the same file needs
# the release in its second line.
set -eu
case $* in
-h | --help)
    echo "usage: $0 FOLDER"
    exit
    ;;
esac
[ $# -eq 1 ] && [ -d "$1" ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
release=$(nvcc --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')

# For every GPU that libodc supports. The PTX version is lowered to the first one with the architecture, so that drivers older
# than nvcc accept it. Comments, which name the compiler's build, are removed.
{
    echo "// SPDX-License-Identifier: Apache-2.0"
    echo "// Made from plain_add.cu by make_ptx.sh with nvcc $release."
    nvcc -ptx -arch=compute_80 -O3 -std=c++20 "$(dirname "$0")/plain_add.cu" -o - |
        sed -e "s/^\.version .*/.version 7.0/" -e 's|[[:space:]]*//.*||' -e '/^[[:space:]]*$/d'
} >"$1/plain_add.ptx"

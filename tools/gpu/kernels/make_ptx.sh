#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes plain_add.ptx from plain_add.cu in FOLDER. Needs nvcc; the same release,
# named in the file's second line, makes the same file.
#
# usage: make_ptx.sh FOLDER, such as tools/gpu/kernels
set -eu
# shellcheck source-path=SCRIPTDIR source=../../../tests/harness/usage.sh
. "$(dirname "$0")/../../../tests/harness/usage.sh"
takes 1 1 "$@"
[ -d "$1" ] || wrong_usage
release=$(nvcc --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')

# For every GPU that libodc supports. The PTX version is lowered to the first one with the architecture, so that drivers older
# than nvcc accept it. Comments, which name the compiler's build, are removed.
{
    echo "// SPDX-License-Identifier: Apache-2.0"
    echo "// Made from plain_add.cu by make_ptx.sh with nvcc $release."
    nvcc -ptx -arch=compute_80 -O3 -std=c++20 "$(dirname "$0")/plain_add.cu" -o - |
        sed -e "s/^\.version .*/.version 7.0/" -e 's|[[:space:]]*//.*||' -e '/^[[:space:]]*$/d'
} >"$1/plain_add.ptx"

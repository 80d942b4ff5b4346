#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles add.cu to add_sm80.ptx and add_sm90.ptx, and exact.cu to exact_sm80.ptx, in FOLDER. Needs nvcc; the same release, named
# in the files' second lines, makes the same files.
#
# usage: make_ptx.sh FOLDER, such as lib/transport/cuda/kernels
set -eu
# shellcheck source-path=SCRIPTDIR source=../../../../tests/harness/usage.sh
. "$(dirname "$0")/../../../../tests/harness/usage.sh"
takes 1 1 "$@"
[ -d "$1" ] || wrong_usage
release=$(nvcc --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
here=$(dirname "$0")

# make NAME ARCHITECTURE VERSION FOLDER: lowers the PTX version to the first that has the architecture and the instructions (8.1:
# red.v4.f32), because drivers older than nvcc reject newer versions. Removes comments, which name the compiler's build.
make() {
    {
        echo "// SPDX-License-Identifier: Apache-2.0"
        echo "// Made from $1.cu by make_ptx.sh with nvcc $release."
        nvcc -ptx -arch="compute_$2" -O3 -std=c++20 -I "$here/../../.." "$here/$1.cu" -o - |
            sed -e "s/^\.version .*/.version $3/" -e 's|[[:space:]]*//.*||' -e '/^[[:space:]]*$/d'
    } >"$4/$1_sm$2.ptx"
}
make add 80 7.0 "$1"
make add 90 8.1 "$1"
make exact 80 7.0 "$1"

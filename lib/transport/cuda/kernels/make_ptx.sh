#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes add_sm80.ptx and add_sm90.ptx of add.cu in the folder that is named: `make_ptx.sh lib/transport/cuda/kernels`. Needs nvcc; for
# the same files, of the release that their first lines name.
set -eu
[ $# -eq 1 ] && [ -d "$1" ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
release=$(nvcc --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')

# make ARCHITECTURE VERSION: that of the PTX language is lowered to the first that has the architecture and the
# instructions used (8.1: red.v4.f32), else drivers older than nvcc would refuse what they can do. Comments go: they name
# the compiler's builds.
make() {
    {
        echo "// SPDX-License-Identifier: Apache-2.0"
        echo "// Made from add.cu by make_ptx.sh with nvcc $release."
        nvcc -ptx -arch="compute_$1" -O3 -std=c++20 "$(dirname "$0")/add.cu" -o - |
            sed -e "s/^\.version .*/.version $2/" -e 's|[[:space:]]*//.*||' -e '/^[[:space:]]*$/d'
    } >"$3/add_sm$1.ptx"
}
make 80 7.0 "$1"
make 90 8.1 "$1"

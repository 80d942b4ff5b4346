#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Assembles the PTX of this folder to machine code, NAME_smNN.cubin, in FOLDER, and lists what they are made
# from, and them. Needs ptxas of CUDA 12.1 (or PTXAS=...): the oldest driver that libodc takes loads what it makes.
#
# usage: make_cubin.sh FOLDER, such as lib/transport/cuda/kernels
set -eu
# shellcheck source-path=SCRIPTDIR source=../../../../tests/harness/usage.sh
. "$(dirname "$0")/../../../../tests/harness/usage.sh"
takes 1 1 "$@"
[ -d "$1" ] || wrong_usage
ptxas=${PTXAS-ptxas}
wanted=12.1
release=$("$ptxas" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
[ "$release" = $wanted ] || { echo "$0: $ptxas is of CUDA $release; ptxas of $wanted is needed" >&2; exit 2; }
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")"

# make NAME PTX ARCHITECTURE
make() { "$ptxas" -O3 --warning-as-error -arch="sm_$3" "$2.ptx" -o "$folder/$1_sm$3.cubin"; }
make add add_sm80 80
make add add_sm90 90
make exact exact_sm80 80
make exact exact_sm80 90
{
    sha256sum add_sm80.ptx add_sm90.ptx exact_sm80.ptx
    cd "$folder"
    sha256sum add_sm80.cubin add_sm90.cubin exact_sm80.cubin exact_sm90.cubin
} >"$folder/cubins.sha256"

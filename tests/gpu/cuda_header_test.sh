#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# cuda/cuda_interface.h agrees with the toolkit's headers. Needs a CUDA toolkit of 13.0 or later.
set -u
: "${ODC_SOURCE_DIR:?the folder of the sources}"
. "$ODC_SOURCE_DIR/tests/harness/shell_checks.sh"
PATH=$PATH:/usr/local/cuda/bin

command -v nvcc >/dev/null || { echo "nvcc was not found"; exit 77; }
release=$(nvcc --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
[ "$release" -ge 13 ] || { echo "nvcc is of CUDA $release; the newest functions came with 13.0"; exit 77; }

header=$ODC_SOURCE_DIR/cuda/cuda_interface.h
compared=$ODC_SOURCE_DIR/tests/gpu/cuda_header.cc
compares_all "$compared" "$header" 50
expect 0 nvcc -std=c++20 -cudart none -Xcompiler -Wall,-Wextra,-Werror,-Wno-invalid-offsetof \
    -I "$(dirname "$header")" -I "$ODC_SOURCE_DIR/tests/harness" "$compared" -o "$work/compare"
[ "$failures" -gt 0 ] || expect 0 "$work/compare"

[ "$failures" -eq 0 ] || exit 1
functions=$(grep -c '^ *X(cu' "$header")
echo "$values values and $functions functions are as in CUDA $(nvcc --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')"

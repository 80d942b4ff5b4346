#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lib/topology/nvml_library.h agrees with NVML's header. Needs nvml.h of a CUDA toolkit or of `tests/venv.sh nvml`.
set -u
: "${ODC_SOURCE_DIR:?the folder of the sources}"
. "$ODC_SOURCE_DIR/tests/harness/shell_checks.sh"

theirs=
for folder in /usr/local/cuda/include "$ODC_SOURCE_DIR"/build/python/lib/python3*/site-packages/nvidia/cu13/include \
    /usr/include; do
    if [ -f "$folder/nvml.h" ]; then
        theirs=$folder/nvml.h
        break
    fi
done
[ -n "$theirs" ] || { echo "nvml.h was not found; tests/venv.sh nvml installs it"; exit 77; }
version=$(sed -n 's/^#define NVML_API_VERSION  *\([0-9]*\).*/\1/p' "$theirs")
[ "${version:-0}" -ge 12 ] || { echo "$theirs is of NVML ${version:-unknown}; CUDA 12 has what is compared"; exit 77; }

header=$ODC_SOURCE_DIR/lib/topology/nvml_library.h
compared=$ODC_SOURCE_DIR/tests/gpu/nvml_header.cc
compares_all "$compared" "$header" 20
expect 0 "${CXX:-c++}" -std=c++20 -Wall -Wextra -Werror -fsyntax-only -DNVML_HEADER="\"$theirs\"" \
    -DNVML_NO_UNVERSIONED_FUNC_DEFS -I "$ODC_SOURCE_DIR/lib" -I "$ODC_SOURCE_DIR/tests/harness" "$compared"

[ "$failures" -eq 0 ] || exit 1
functions=$(grep -c '^ *X(nvml' "$header")
echo "$values values and $functions functions are as in $theirs (NVML $version)"

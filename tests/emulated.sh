#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs C tests on processors that this machine is not: builds for arm64 with Debian's cross compiler against Debian's
# packages for arm64, which it unpacks in build/arm64 and does not install, and runs there by emulation; and runs the x86-64
# release build as on a processor of 2006 (no AVX, no F16C). `emulated.sh` runs the unit tests, `emulated.sh all` every C
# test that an emulator can, which takes an hour. Ends with 77, and the reason, where it cannot.
set -eu
cd "$(dirname "$0")/.."
case ${1:-} in
'') tests='_unit_test$' x86_tests=(memory_unit shards minibatch operations) ;;
all) tests=. x86_tests=(memory_unit shards minibatch operations release random) ;;
*)
    echo "usage: tests/emulated.sh [all]" >&2
    exit 2
    ;;
esac
for tool in qemu-aarch64:qemu-user qemu-x86_64:qemu-user aarch64-linux-gnu-g++:g++-aarch64-linux-gnu apt-get:apt dpkg-deb:dpkg; do
    command -v "${tool%:*}" >/dev/null || { echo "${tool%:*} was not found (Debian: ${tool#*:})"; exit 77; }
done
build=$PWD/build/arm64
root=$build/root
packages=$build/packages
mkdir -p "$packages/state/lists/partial" "$packages/cache/archives/partial"

# Debian's apt with nothing installed and folders of its own, for arm64.
arm64_apt() {
    : >"$packages/status"
    apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Install-Recommends=false \
        -o Dir::State="$packages/state" -o Dir::State::status="$packages/status" -o Dir::Cache="$packages/cache" \
        -o Debug::NoLocking=true "$@" >"$packages/log" 2>&1 </dev/null
}

if [ ! -e "$root/complete" ]; then
    arm64_apt update && arm64_apt -y --download-only install libc6-dev libstdc++-12-dev libhwloc-dev libexpat1-dev \
        libsodium-dev libhwy-dev libcmocka-dev libfabric-dev nlohmann-json3-dev ||
        { echo "packages for arm64 cannot be had: $(tail -n 1 "$packages/log")"; exit 77; }
    for package in "$packages"/cache/archives/*.deb; do
        dpkg-deb -x "$package" "$root"
    done
    touch "$root/complete"
fi

echo "==== arm64"
# Without optimisation: what the compiler makes of it, the emulator undoes.
PKG_CONFIG_LIBDIR=$root/usr/lib/aarch64-linux-gnu/pkgconfig:$root/usr/share/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root \
    cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DODC_TOOLS=OFF -DODC_TESTS=ON \
    -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_LIBRARY_ARCHITECTURE=aarch64-linux-gnu \
    -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_SYSROOT="$root" \
    "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;$root" >"$build/log"
cmake --build "$build" >"$build/log" || { cat "$build/log" >&2; exit 1; }
# Not those that weigh the process, where the emulator is weighed along, nor the one of forked children: the emulator
# takes MADV_WIPEONFORK and does nothing.
ctest --test-dir "$build" -L '^c$' -R "$tests" -E 'memory_test|job_errors_test' -j 2 --timeout 600 --no-tests=error --output-on-failure

echo "==== x86-64 without AVX"
for name in "${x86_tests[@]}"; do
    timeout 600 qemu-x86_64 -cpu core2duo "build/release/tests/${name}_test"
done

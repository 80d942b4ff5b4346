#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs C tests on emulated processors: builds for arm64 with Debian's cross compiler and Debian's packages for arm64, which it
# unpacks in build/arm64 without installing them; and runs the x86-64 release build on a processor of 2006 (no AVX, no F16C).
# `emulated.sh` runs the unit tests, `emulated.sh all` every C test that an emulator can run, which takes an hour. A part that
# lacks something is skipped with the reason; without either it exits with 77.
set -u
cd "$(dirname "$0")/.." || exit 1
# shellcheck source=tests/harness/shell_checks.sh
. tests/harness/shell_checks.sh
trap 'exit 1' INT TERM
case ${1:-} in
'') tests='^(unit|fakes)$' target=unit_tests x86_tests=(unit/{host,exact}_kernels contract/{shards,minibatch,operations}) ;;
all) tests=. target=all x86_tests=(unit/{host,exact}_kernels contract/{shards,minibatch,operations,release,random,exact}) ;;
*)
    echo "usage: tests/emulated.sh [all]" >&2
    exit 2
    ;;
esac
build=$PWD/build/arm64
root=$build/root
packages=$build/packages

# Debian's apt with an empty system and its own folders, for arm64.
arm64_apt() {
    : >"$packages/status"
    bounded 900 apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Install-Recommends=false \
        -o Dir::State="$packages/state" -o Dir::State::status="$packages/status" -o Dir::Cache="$packages/cache" \
        -o Debug::NoLocking=true "$@" >"$packages/log" 2>&1 </dev/null
}

unpack_arm64() {
    local package wanted="libc6-dev libstdc++-12-dev libhwloc-dev libexpat1-dev libsodium-dev libhwy-dev libfmt-dev \
libcmocka-dev libfabric-dev nlohmann-json3-dev"
    [ "$(cat "$root/complete" 2>/dev/null)" != "$wanted" ] || return 0
    needs apt-get:apt dpkg-deb:dpkg || return 77
    mkdir -p "$packages/state/lists/partial" "$packages/cache/archives/partial"
    # shellcheck disable=SC2086
    if ! arm64_apt update || ! arm64_apt -y --download-only install $wanted; then
        why="packages for arm64 cannot be had: $(tail -n 1 "$packages/log")"
        return 77
    fi
    for package in "$packages"/cache/archives/*.deb; do
        dpkg-deb -x "$package" "$root" || return 1
    done
    echo "$wanted" >"$root/complete"
}

part_arm64() {
    needs qemu-aarch64:qemu-user aarch64-linux-gnu-g++:g++-aarch64-linux-gnu || return 77
    unpack_arm64 || return
    # Without optimisation, which gains nothing under emulation; several files in one unit.
    PKG_CONFIG_LIBDIR=$root/usr/lib/aarch64-linux-gnu/pkgconfig:$root/usr/share/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root \
        bounded 600 cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=None -DCMAKE_UNITY_BUILD=ON \
        -DODC_TOOLS=OFF -DODC_TESTS=ON \
        -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_LIBRARY_ARCHITECTURE=aarch64-linux-gnu \
        -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_SYSROOT="$root" \
        "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;$root" >"$build/log" || return 1
    bounded 3600 cmake --build "$build" --target "$target" >"$build/log" || { cat "$build/log" >&2; return 1; }
    # Not those that measure the process's memory, which includes the emulator, nor the one of forked children: the emulator
    # ignores MADV_WIPEONFORK.
    ctest --test-dir "$build" -L '^sanitizers$' -L "$tests" -E '^contract/memory|^faults/job_errors|_on_a_gpu$' -j 2 \
        --timeout 600 --no-tests=error --output-on-failure
}

part_x86_64() {
    local name status=0
    needs qemu-x86_64:qemu-user || return 77
    [ "$(uname -m)" = x86_64 ] || { why="build/release is of $(uname -m)"; return 77; }
    [ -e build/release/tests ] || { why="there is no build/release/tests; build the release preset first"; return 77; }
    for name in "${x86_tests[@]}"; do
        bounded 600 qemu-x86_64 -cpu core2duo "build/release/tests/${name}_test" || status=1
    done
    return "$status"
}

parts arm64 x86_64 || exit 1
[ "$passed" -gt 0 ] || { echo "neither part can run here; the reasons are above"; exit 77; }

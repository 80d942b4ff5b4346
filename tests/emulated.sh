#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs C tests on emulated processors: builds for arm64 with Debian's cross compiler and Debian's packages for arm64, which it
# unpacks in build/arm64 without installing them; and runs the x86-64 release build on a processor of 2006 (no AVX, no F16C).
# `emulated.sh` runs the unit tests, `emulated.sh all` every C test that an emulator can run, which takes an hour, and builds and
# tries the wheel for arm64, which `emulated.sh wheel` does alone. A part that lacks something is skipped with the reason; if all
# do, it exits with 77.
#
# usage: tests/emulated.sh [all | wheel]
set -u
# shellcheck source-path=SCRIPTDIR source=harness/usage.sh
. "$(dirname "$0")/harness/usage.sh"
cd "$(dirname "$0")/.." || exit 1
# shellcheck source=tests/harness/shell_checks.sh
. tests/harness/shell_checks.sh
trap 'exit 1' INT TERM
chosen=(arm64 x86_64)
case ${1:-} in
wheel) chosen=(wheel) ;;
'') tests='^(unit|fakes)$' target=unit_tests x86_tests=(unit/{host,exact}_kernels contract/{shards,minibatch,operations}) ;;
all) tests=. target=all x86_tests=(unit/{host,exact}_kernels contract/{shards,minibatch,operations,release,random,exact})
    chosen+=(wheel)
    ;;
*) wrong_usage ;;
esac
build=$PWD/build/arm64
root=$build/system
export ODC_ARM64_ROOT=$root

unpack_arm64() {
    local status
    bash packaging/arm64_root.sh "$build" >"$work/unpacked"
    status=$?
    why=$(tail -n 1 "$work/unpacked")
    return "$status"
}

part_arm64() {
    needs qemu-aarch64:qemu-user aarch64-linux-gnu-g++:g++-aarch64-linux-gnu || return 77
    unpack_arm64 || return
    # Without optimisation, which gains nothing under emulation but for the kernels of exact sums; several files in one unit.
    bounded 600 cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Emulated -DCMAKE_UNITY_BUILD=ON \
        -DODC_TOOLS=OFF -DODC_TESTS=ON -DCMAKE_TOOLCHAIN_FILE=packaging/arm64.cmake \
        "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;$root" >"$build/log" || return 1
    bounded 3600 cmake --build "$build" --target "$target" >"$build/log" || { cat "$build/log" >&2; return 1; }
    # Not those that measure the process's memory, which includes the emulator, nor the one of forked children: the emulator
    # ignores MADV_WIPEONFORK.
    ctest --test-dir "$build" -L '^sanitizers$' -L "$tests" -E '^contract/memory|^faults/job_errors|_on_a_gpu$' -j 2 \
        --timeout 600 --no-tests=error --output-on-failure
}

# The wheel for arm64 holds what it needs: Debian's Python for arm64 trains a minibatch of one rank with it.
part_wheel() {
    needs qemu-aarch64:qemu-user aarch64-linux-gnu-g++:g++-aarch64-linux-gnu || return 77
    unpack_arm64 || return
    python3 -m venv "$work/tools" && "$work/tools/bin/pip" install --quiet -r packaging/wheel_tools.txt \
        2>"$work/log" || { why="auditwheel cannot be installed: $(tail -n 1 "$work/log")"; return 77; }
    PATH=$work/tools/bin:$PATH bounded 1800 bash packaging/arm64_wheel.sh "$work/wheel" >"$work/log" 2>&1 ||
        { cat "$work/log" >&2; return 1; }
    contains "$(ls "$work/wheel")" "-py3-none-manylinux_2_"
    python3 -m zipfile -e "$work"/wheel/*_aarch64.whl "$work/unpacked_wheel" || return 1
    seconds=120
    expect 0 env PYTHONHOME="$root/usr" PYTHONPATH="$work/unpacked_wheel" qemu-aarch64 -L "$root" "$root/usr/bin/python3" -c '
import platform, libodc
with libodc.init(rank=0, size=1) as context:
    shard = context.register("layer", 1000)
    context.publish()
    shard.gather(bytearray(4000))
    context.sync()
    print(platform.machine(), context.stats().gather_calls)'
    same "$out" "aarch64 1"
    chmod +x "$work/unpacked_wheel/libodc/bin/odc"
    expect 0 qemu-aarch64 -L "$root" "$work/unpacked_wheel/libodc/bin/odc" info
    contains "$out" "fabric   ready"
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

parts "${chosen[@]}" || exit 1
[ "$passed" -gt 0 ] || { echo "no part can run here; the reasons are above"; exit 77; }

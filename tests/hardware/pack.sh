#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Puts all that run.sh needs on a machine that has none of it into one folder, and into FOLDER.tar.gz beside it: the
# library, the command, the tests and what they load but glibc and libstdc++, the Python package, its tests and examples,
# and these scripts. libfabric is left out: ranks of one host need none.
#
# usage: tests/hardware/pack.sh [BUILD_DIRECTORY [FOLDER]]       (build/release and build/gpu of this tree unless given)
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../harness/usage.sh
. "$(dirname "$0")/../harness/usage.sh"
takes 0 2 "$@"

source=$(cd "$(dirname "$0")/../.." && pwd)
build=$(realpath "${1:-$source/build/release}")
tree=$(realpath -m "${2:-$source/build/gpu}")
most=$((40 << 20)) # bytes of the archive
programs=(contract/random gpu/contexts gpu/death gpu/faults gpu/input gpu/routes gpu/streams gpu/p2p_selftest)

die() {
    echo "pack.sh: $*" >&2
    exit 1
}
command -v patchelf >/dev/null || die "patchelf is needed (Debian: patchelf)"
[ -x "$build/tools/odc" ] || die "$build/tools/odc is not there: cmake --preset release && cmake --build --preset release"
# Nothing is removed that this script has not made.
[ ! -e "$tree" ] || [ -e "$tree/made_of.json" ] || die "$tree is there, and not made by this script"

rm -rf "$tree" "$tree.tar.gz"
mkdir -p "$tree"/{bin,lib,kernels,bindings/python,tests}

# made_of.json: what this is of.
commit=$(git -C "$source" rev-parse HEAD 2>/dev/null || echo unknown)
dirty=false
[ -z "$(git -C "$source" status --porcelain 2>/dev/null)" ] || dirty=true
type=$(sed -n 's/^CMAKE_BUILD_TYPE:[A-Z]*=//p' "$build/CMakeCache.txt")
printf '{"commit": "%s", "dirty": %s, "build": "%s", "packed": "%s"}\n' "$commit" "$dirty" "$type" \
    "$(date --utc +%Y-%m-%dT%H:%M:%SZ)" >"$tree/made_of.json"

cp "$build/tools/odc" "$tree/bin/"
for name in "${programs[@]}"; do
    to=${name#contract/}
    cp "$build/tests/${name}_test" "$tree/bin/${to/\//_}_test"
done
cp "$(realpath "$build/lib/libodc.so.0")" "$tree/lib/libodc.so.0"
# Not those that go with the kernel's or the compiler's side of the machine.
ldd "$tree"/bin/* "$tree/lib/libodc.so.0" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u |
    grep -vE '^(libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+|libodc|libcuda|ld-linux[^ ]*)\.so' |
    while read -r name path; do cp -L "$path" "$tree/lib/$name"; done
strip --strip-unneeded "$tree"/bin/* "$tree"/lib/*
# Programs find these libraries by their rpath, not by LD_LIBRARY_PATH, which python3 would follow, too.
for file in "$tree"/bin/*; do
    patchelf --set-rpath "\$ORIGIN/../lib" "$file"
done
for file in "$tree"/lib/*; do
    patchelf --set-rpath "\$ORIGIN" "$file"
done

cp "$source"/lib/transport/cuda/kernels/add_sm90.ptx "$tree/kernels/"
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
for kernel in bulk fill; do
    if [ -x "$nvcc" ]; then
        "$nvcc" -ptx -arch=compute_90 -O3 -std=c++20 -I "$source/lib" "$source/tests/hardware/$kernel.cu" \
            -o "$tree/kernels/$kernel.ptx"
    fi
done

cp -r "$source"/bindings/python/{libodc,tests,bench,examples,pyproject.toml} "$tree/bindings/python/"
"${CC:-cc}" -O2 -fPIC -shared "$source/bindings/python/native.c" -o "$tree/bindings/python/libodc/libodc_native.so"
cp -r "$source/tests/hardware" "$tree/tests/hardware"
mkdir -p "$tree/tests/harness"
cp "$source/tests/harness/terminal.py" "$tree/tests/harness/" # a Python test reads a terminal by it
rm -rf "$tree/tests/hardware/results"
find "$tree" -name __pycache__ -prune -exec rm -r {} +

tar -C "$(dirname "$tree")" -czf "$tree.tar.gz" "$(basename "$tree")"
bytes=$(stat -c %s "$tree.tar.gz")
[ "$bytes" -le "$most" ] || die "$tree.tar.gz has $bytes bytes, more than $most"
echo "$tree and $tree.tar.gz ($((bytes >> 10)) KiB), of commit $commit$([ $dirty = false ] || echo ", changed")"

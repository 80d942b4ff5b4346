#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs into an empty prefix and moves it; then C programs find the library there through find_package and through
# pkg-config, shared and static, and run.
set -eu
: "${ODC_BUILD_DIR:?the folder of the build}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "$*" >&2
    exit 1
}

cmake --install "$ODC_BUILD_DIR" --prefix "$work/first" >"$work/log" 2>&1 || fail "install: $(cat "$work/log")"
mv "$work/first" "$work/prefix"
prefix=$work/prefix
libdir=$(dirname "$(find "$prefix" -name libodc.so)")
for file in include/odc/odc.h include/odc/odc.hpp bin/odc share/man/man1/odc.1; do
    [ -e "$prefix/$file" ] || fail "$file was not installed"
done
"$prefix/bin/odc" info >"$work/log" 2>&1 || fail "the installed odc: $(cat "$work/log")"
[ -z "$(find "$prefix" -type f -print0 | xargs -0 grep -lIF "$work/first")" ] || fail "an installed text names the prefix"

cat >"$work/main.c" <<'C'
#include <odc/odc.h>
#include <stdio.h>

int main(void) {
    odc_config config = {0};
    odc_context *context;
    config.struct_size = sizeof config;
    config.size = 1;
    if (odc_init(&config, &context) != ODC_OK) {
        fprintf(stderr, "%s\n", odc_last_error());
        return 1;
    }
    odc_destroy(context);
    puts(odc_build());
    return 0;
}
C
cat >"$work/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.22)
project(consumer LANGUAGES C)
find_package(odc 0.1 REQUIRED COMPONENTS static)
foreach(library odc odc_static)
  add_executable(with_${library} main.c)
  target_link_libraries(with_${library} PRIVATE odc::${library})
endforeach()
CMAKE

# runs PROGRAM shared|static
runs() {
    local needed
    needed=$(objdump -p "$1" | awk '$1 == "NEEDED" {print $2}')
    case $2:$needed in
    shared:*libodc.so.0*) ;;
    static:*libodc*) fail "$1 was to link libodc statically" ;;
    static:*) ;;
    *) fail "$1 was to link libodc.so.0, but needs $needed" ;;
    esac
    LD_LIBRARY_PATH=$libdir timeout 30 "$1" >"$work/log" 2>&1 || fail "$1: $(cat "$work/log")"
}

cmake -G Ninja -S "$work" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" >"$work/log" 2>&1 || fail "find_package: $(cat "$work/log")"
cmake --build "$work/build" >"$work/log" 2>&1 || fail "build with find_package: $(cat "$work/log")"
runs "$work/build/with_odc" shared
runs "$work/build/with_odc_static" static

export PKG_CONFIG_PATH=$libdir/pkgconfig
version=$(sed -n 's/^#define ODC_VERSION_[A-Z]* //p' "$prefix/include/odc/odc.h" | paste -sd.)
[ "$(pkg-config --modversion odc)" = "$version" ] || fail "pkg-config says $(pkg-config --modversion odc), not $version"
# shellcheck disable=SC2046
cc "$work/main.c" -o "$work/pc_shared" $(pkg-config --cflags --libs odc)
runs "$work/pc_shared" shared
rm "$libdir"/libodc.so*
# shellcheck disable=SC2046
cc "$work/main.c" -o "$work/pc_static" $(pkg-config --static --cflags --libs odc)
runs "$work/pc_static" static
echo "libodc $version is found by find_package and pkg-config, shared and static"

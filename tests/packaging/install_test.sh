#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs into an empty prefix and moves it to a path with spaces, where C programs find the library by find_package and by
# pkg-config, shared and static, and run. Unsupported configurations are refused with an error.
set -u
: "${ODC_BUILD_DIR:?the folder of the build}" "${ODC_SOURCE_DIR:?the folder of the sources}"
# shellcheck source=tests/harness/shell_checks.sh
. "$(dirname "$0")/../harness/shell_checks.sh"
seconds=200

expect 0 cmake --install "$ODC_BUILD_DIR" --prefix "$work/first"
prefix="$work/a prefix of ours"
mv "$work/first" "$prefix"
libdir=$(dirname "$(find "$prefix" -name libodc.so)")
for file in include/odc/odc.h include/odc/odc.hpp bin/odc share/man/man1/odc.1 \
    share/bash-completion/completions/odc share/zsh/site-functions/_odc; do
    [ -e "$prefix/$file" ] || fail "$file was not installed"
done
expect 0 "$prefix/bin/odc" info
same "$(find "$prefix" -type f -print0 | xargs -0 grep -lIF "$work/first")" ""

mkdir "$work/a program"
cd "$work/a program" || exit 1
cp "$ODC_SOURCE_DIR/tests/packaging/alone.c" main.c
cat >CMakeLists.txt <<'CMAKE'
cmake_minimum_required(VERSION 3.22)
project(consumer LANGUAGES C)
set(ours HWLOC_FOUND EXPAT_LIBRARIES SODIUM_FOUND HWY_FOUND LIBFABRIC_FOUND)
foreach(name ${ours})
  set(${name} kept)
endforeach()
find_package(odc ${WANTED} REQUIRED COMPONENTS ${COMPONENT})
foreach(name ${ours})
  if(NOT "${${name}}" STREQUAL "kept")
    message(FATAL_ERROR "find_package(odc) has changed ${name}")
  endif()
endforeach()
foreach(library odc static)
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
    LD_LIBRARY_PATH=$libdir expect 0 "$1"
    contains "$out" "libodc $version, Release"
}

# configure STATUS OPTION...
configure() {
    local status=$1
    shift
    rm -rf build
    expect "$status" cmake -G Ninja -S . -B build "-DCMAKE_PREFIX_PATH=$prefix" "$@"
}

version=$(sed -n 's/^#define ODC_VERSION_[A-Z]* //p' "$prefix/include/odc/odc.h" | paste -sd.)
configure 0 -DWANTED="${version%.*}" -DCOMPONENT=static
expect 0 cmake --build build
runs build/with_odc shared
runs build/with_static static
configure 0 -DWANTED=0.0 -DCOMPONENT=static # a later minor version is accepted
configure 1 -DWANTED=1.0 -DCOMPONENT=static
contains "$err" "version: $version"
PKG_CONFIG_LIBDIR=/no/such configure 1 -DCOMPONENT=static
contains "$err" "odc::static needs pkg-config and the development files of hwloc, Expat,"

# Nix and Guix use absolute paths.
for libdir in lib64 /opt/odc/lib64; do
    expect 0 cmake -G Ninja -S "$ODC_SOURCE_DIR" -B "$work/absolute" -DODC_TOOLS=OFF -DODC_TESTS=OFF -DODC_INSTALL=ON \
        -DCMAKE_INSTALL_PREFIX=/opt/odc -DCMAKE_INSTALL_LIBDIR=$libdir
    same "$(sed -n 's/^[a-z]*dir=//p; s/^prefix=//p' "$work/absolute/odc.pc")" \
        '${pcfiledir}/../..
${prefix}/lib64
${prefix}/include'
done
libdir=$(dirname "$(find "$prefix" -name libodc.so)")

# In the folder of the sources, which must not change.
mkdir "$work/in place"
for part in CMakeLists.txt LICENSE bindings cuda include lib packaging; do
    cp -r "$ODC_SOURCE_DIR/$part" "$work/in place"
done
sums() { (cd "$work/in place" && find . -type f -exec cksum {} + | sort); }
sums >"$work/before"
expect 0 cmake -G Ninja -S "$work/in place" -B "$work/in place" -DODC_TOOLS=OFF -DODC_TESTS=OFF
same "$(sums | comm -23 "$work/before" -)" ""

export PKG_CONFIG_PATH=$libdir/pkgconfig
same "$(pkg-config --modversion odc)" "$version"
expect 0 bash -c 'eval cc main.c -o pc_shared $(pkg-config --cflags --libs odc)'
runs ./pc_shared shared
# Where both are installed, as the README says.
expect 0 bash -c 'flags=$(pkg-config --static --cflags --libs odc) && eval cc main.c -o pc_both "${flags/-lodc/-l:libodc.a}"'
runs ./pc_both static
rm "$libdir"/libodc.so*
expect 0 bash -c 'eval cc main.c -o pc_static $(pkg-config --static --cflags --libs odc)'
runs ./pc_static static

# Whether or not 32-bit libraries are installed.
if [ "$(uname -m)" = x86_64 ]; then # whose compilers have these options
    for flags in -DCMAKE_C_FLAGS=-m32 -DCMAKE_CXX_FLAGS=-mx32; do
        expect 1 cmake -S "$ODC_SOURCE_DIR" -B "$work/narrow" "$flags"
        contains "$err" "libodc is for 64-bit processors; build it without -m32 and for a 64-bit"
    done
    CC='cc -m32' expect 1 cmake -S "$ODC_SOURCE_DIR" -B "$work/narrow of cc"
    contains "$err" "libodc is for 64-bit processors"
    CFLAGS='-O2 -m32' expect 1 cmake -S "$ODC_SOURCE_DIR" -B "$work/narrow"
    contains "$err" "libodc is for 64-bit processors"
    # Also without a C library for them.
    for narrow in -m32 -mx32; do
        expect 1 gcc $narrow -fsyntax-only -x c "$ODC_SOURCE_DIR/include/odc/odc.h"
        contains "$err" "libodc is for 64-bit programs: compile for a 64-bit target, without -m32 and -mx32"
    done
else
    echo "skipped: what -m32 and -mx32 are told: compilers for $(uname -m) have no such options"
fi

[ "$failures" -eq 0 ] && echo "libodc $version is found by find_package and pkg-config, shared and static"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# libodc as a part of another project, by FetchContent (which calls add_subdirectory), in a path with spaces: the library alone,
# shared and static, and <odc/odc.hpp>; installed along only with ODC_INSTALL; with any flags of the project. Run by run.sh, not
# by ctest, as it builds the library.
set -u
sources=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=tests/harness/shell_checks.sh
. "$sources/tests/harness/shell_checks.sh"
trap 'exit 1' INT TERM
mkdir "$work/a project"
cd "$work/a project" || exit 1
# Like a project that vendors libodc's sources: without git's folder and build outputs.
mkdir "their libodc"
cp -r "$sources"/{CMakeLists.txt,LICENSE,bindings,cuda,include,lib,packaging,tools} "their libodc/"

cp "$sources/tests/packaging/alone.c" main.c
mkdir cpp
cp "$sources/bindings/cpp/tests/uses.cc" cpp/
cat >CMakeLists.txt <<'CMAKE'
cmake_minimum_required(VERSION 3.22)
project(theirs LANGUAGES C)
include(FetchContent)
FetchContent_Declare(odc SOURCE_DIR "${CMAKE_CURRENT_SOURCE_DIR}/their libodc")
FetchContent_MakeAvailable(odc)
foreach(library odc static)
  add_executable(with_${library} main.c)
  target_link_libraries(with_${library} PRIVATE odc::${library})
endforeach()
install(TARGETS with_static)
add_subdirectory(cpp)
CMAKE
cat >cpp/CMakeLists.txt <<'CMAKE'
project(in_cpp LANGUAGES CXX)
add_library(in_cpp OBJECT uses.cc)
target_compile_features(in_cpp PRIVATE cxx_std_17)
target_link_libraries(in_cpp PRIVATE odc::odc)
CMAKE

# At the same depth from libodc's sources as build/release: a compiler cache has the same objects.
build="their libodc/build/theirs"
export CCACHE_BASEDIR=$work
# build_with OPTION...
build_with() {
    expect 0 cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_UNITY_BUILD=ON "$@"
    bounded 1800 cmake --build "$build" >build.log 2>&1 || fail "$(tail -n 20 build.log)"
    rm -rf installed
    expect 0 cmake --install "$build" --prefix installed
}

build_with
for library in odc static; do
    expect 0 "$build/with_$library"
    same "$(tail -n 1 <<<"$out")" 1
done
same "$(find "$build" -name 'odc' -type f -perm /1; find "$build" -name '*_test')" "" # neither the command nor tests
same "$(find installed -type f)" installed/bin/with_static
build_with -DODC_INSTALL=ON
for file in libodc.so libodc.a odcConfig.cmake odc.pc odc.h odc.hpp shard.hpp; do
    [ -n "$(find installed -name "$file")" ] || fail "$file was not installed with ODC_INSTALL"
done

# A project without exceptions, with several configurations in one build; one file represents all.
expect 0 cmake -G "Ninja Multi-Config" -S . -B several -DCMAKE_CXX_FLAGS="-fno-exceptions -fno-rtti"
object=_deps/odc-build/lib/CMakeFiles/odc_objects.dir/Debug/api/c_api.cc.o
bounded 600 cmake --build several --config Debug --target $object >build.log 2>&1 || fail "$(tail -n 20 build.log)"
grep -qzx Debug several/$object || fail "the Debug configuration's library calls itself otherwise"
[ "$failures" -eq 0 ]

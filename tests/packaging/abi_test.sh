#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The binary interface is the one recorded in packaging/abi/, with every combination of build options, each compiler, and in the
# built library; programs of the previous header run with this library, and the other way round.
set -u
: "${ODC_SOURCE_DIR:?the folder of the sources}" "${ODC_BUILD_DIR:?the folder of the build}" "${ODC:?the odc command}"
cd "$(dirname "$0")" || exit 1
# shellcheck source=tests/harness/shell_checks.sh
. ../harness/shell_checks.sh
# shellcheck source=tests/packaging/abi/boundary.sh
. ./abi/boundary.sh
needs_tools
abi=$ODC_SOURCE_DIR/packaging/abi
library=$ODC_BUILD_DIR/lib/libodc.so

boundary "$(compile_command "$ODC_BUILD_DIR")" "$ODC_SOURCE_DIR" "$work/libodc.so.0" || fail "c_api.cc does not compile"
expect 0 "$abi/check.sh" "$work/libodc.so.0"
echo "$out"
"$abi/describe.sh" "$work/libodc.so.0" >"$work/wanted.abi"

# symbols LIBRARY: its functions with their versions.
symbols() {
    nm -D --defined-only --with-symbol-versions "$1" | awk '$2 == "T" { print $3 }' | LC_ALL=C sort
}
same "$(symbols "$library")" "$(symbols "$work/libodc.so.0")"
[ "$(symbols "$library" | wc -l)" -ge 33 ] || fail "only these functions were found in $library: $(symbols "$library")"

# Programs of one version with the library of the other.
mkdir -p "$work/previous/odc"
cp "$abi/previous/odc.h" "$work/previous/odc/"
cc -shared -fPIC -Wl,-soname,libodc.so.0 "-Wl,--version-script=$abi/previous/odc.map" "$abi/previous/libodc.c" \
    -o "$work/previous/libodc.so.0" || fail "the previous library does not compile"
for name in $(symbols "$work/previous/libodc.so.0" | sed 's/@.*//'); do
    grep -q "\<$name(" abi/program.c || fail "abi/program.c does not call $name"
done
for header in "$work/previous" "$ODC_SOURCE_DIR/include"; do
    cc -std=c11 -I "$header" abi/program.c "$library" -o "$work/program_of_$(basename "$header")" || fail "abi/program.c with $header"
done
LD_LIBRARY_PATH=$ODC_BUILD_DIR/lib expect 0 "$work/program_of_previous" alone
LD_LIBRARY_PATH=$ODC_BUILD_DIR/lib expect 0 "$ODC" run -n 3 "$work/program_of_previous"
LD_LIBRARY_PATH=$work/previous expect 0 "$work/program_of_include" alone
same "$(symbols "$library" | grep -Fxf <(symbols "$work/previous/libodc.so.0"))" "$(symbols "$work/previous/libodc.so.0")"

# Every combination of build options; without PMIx, with each compiler, and without optimisation. Most have the same command for
# c_api.cc, which is run once.
options=$(sed -n 's/^option(\([A-Z_]*\) .*/\1/p' "$ODC_SOURCE_DIR/CMakeLists.txt")
combinations=('')
for option in $options; do
    combinations=("${combinations[@]/%/ -D$option=ON}" "${combinations[@]/%/ -D$option=OFF}")
done
combinations+=(' -DODC_TESTS=OFF -DPMIX_INCLUDE=' ' -DODC_TESTS=OFF -DCMAKE_BUILD_TYPE=Debug')
command -v clang++ >/dev/null &&
    combinations+=(' -DODC_TESTS=OFF -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_C_COMPILER=clang')
tried=()
for combination in "${combinations[@]}"; do
    build="$work/build" # for all, as its cache knows the compiler
    case $combination in *-DCMAKE_*) build="$work/build of$combination" ;; esac
    # shellcheck disable=SC2086
    expect 0 cmake -G Ninja -S "$ODC_SOURCE_DIR" -B "$build" -U 'ODC_*' -U 'PMIX*' $combination
    command=$(compile_command "$build")
    command=${command//"$build"/"$ODC_BUILD_DIR"}
    [[ " ${tried[*]} " != *" <$command> "* ]] || continue
    tried+=("<$command>")
    boundary "$command" "$ODC_SOURCE_DIR" "$work/other.so" || fail "c_api.cc does not compile with$combination"
    "$abi/describe.sh" "$work/other.so" >"$work/other.abi"
    expect 0 abidiff --harmless "$work/wanted.abi" "$work/other.abi"
done
[ "${#tried[@]}" -ge 3 ] || fail "only ${#tried[@]} different commands in ${#combinations[@]} combinations: ${tried[*]}"
echo "one interface in ${#combinations[@]} combinations of options, which compile c_api.cc in ${#tried[@]} ways"

[ "$failures" -eq 0 ]

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Adds a function and a field to a copy of the tree as docs/abi.md says: the checks pass, old programs run with the result, and
# new ones that use nothing new run with the previous library. Each missing or wrong step is found.
set -u
: "${ODC_SOURCE_DIR:?the folder of the sources}" "${ODC_BUILD_DIR:?the folder of the build}"
cd "$(dirname "$0")" || exit 1
# shellcheck source=tests/harness/shell_checks.sh
. ../harness/shell_checks.sh
# shellcheck source=tests/packaging/abi/boundary.sh
. ./abi/boundary.sh
needs_tools
tree=$work/tree
command=$(compile_command "$ODC_BUILD_DIR")

# edit FILE SED-SCRIPT: edits the copy; fails if nothing changes.
edit() {
    cp "$tree/$1" "$work/before"
    sed -i "$2" "$tree/$1"
    ! cmp -s "$tree/$1" "$work/before" || fail "nothing in $1 is changed by $2"
}

fresh_copy() {
    rm -rf "$tree"
    mkdir -p "$tree/build/lib" "$tree/tests/harness"
    cp -r "$ODC_SOURCE_DIR"/{include,lib,cuda,packaging} "$tree/"
    cp "$ODC_SOURCE_DIR/tests/harness/usage.sh" "$tree/tests/harness/"
    [ ! -e "$work/unchanged.so" ] || cp "$work/unchanged.so" "$tree/build/lib/libodc.so"
}

# The steps, in the order of docs/abi.md.
add_function() {
    edit include/odc/odc.h 's/^ODC_API odc_status odc_get_setting(.*/&\nODC_API size_t odc_count_settings2(void);/'
    edit lib/api/c_api.cc 's/^odc_status odc_get_setting(.*/size_t odc_count_settings2(void) { return odc::kSettings.size(); }\n&/'
}
export_it() {
    echo 'ODC_0.5 { global: odc_count_settings2; } ODC_0.4;' >>"$tree/lib/api/odc.map"
}
add_field() {
    edit include/odc/odc.h 's/^    const char \*name, \*fallback, \*help;/&\n    const char *unit;/'
    edit lib/api/c_api.cc 's/row.fallback, row.help}/row.fallback, row.help, "ms"}/'
}
list() {
    python3 "$tree/packaging/abi/declarations.py" "$tree/include/odc/odc.h" | grep -vxFf "$tree/packaging/abi/declarations.c" >"$work/new_lines"
    cat "$work/new_lines" >>"$tree/packaging/abi/declarations.c"
}
build() {
    boundary "$command" "$tree" "$tree/build/lib/libodc.so" || fail "the copy does not compile"
}
describe() {
    "$tree/packaging/abi/describe.sh" "$tree/build/lib/libodc.so" >"$work/odc.abi"
    mv "$work/odc.abi" "$tree/packaging/abi/odc.abi"
}
check() {
    expect "$1" "$tree/packaging/abi/check.sh" "$tree/build/lib/libodc.so"
}

fresh_copy
build
cp "$tree/build/lib/libodc.so" "$work/unchanged.so"
check 0
add_function
export_it
add_field
list
same "$(cat "$work/new_lines")" "FIELD(odc_setting, unit, const char *, 32, 8)
FUNCTION(odc_count_settings2, size_t, void)"
build
describe
check 0
ODC_SOURCE_DIR=$tree ODC_BUILD_DIR=$tree/build expect 0 bash symbols_test.sh
contains "$out" "$(grep -c '^FUNCTION' "$tree/packaging/abi/declarations.c") functions"

# With the rest of the build's library: only c_api.cc knows odc_setting, and a header whose size of it never changes.
grep -rl odc_setting "$tree/lib" | sort >"$work/who"
same "$(cat "$work/who")" "$tree/lib/api/c_api.cc
$tree/lib/api/struct_copy.h"
# shellcheck disable=SC2046
c++ -shared -Wl,-soname,libodc.so.0 "-Wl,--version-script=$tree/lib/api/odc.map" "$tree/build/lib/libodc.so.o" \
    "$ODC_BUILD_DIR/lib/libodc.a" $(sed -n 's/^Libs.private: //p' "$ODC_BUILD_DIR/odc.pc") -o "$tree/build/lib/libodc.so.0" ||
    fail "the copy does not link"
mkdir -p "$work/previous/odc"
cp "$tree/packaging/abi/previous/odc.h" "$work/previous/odc/"
cc -I "$work/previous" abi/program.c "$ODC_BUILD_DIR/lib/libodc.so" -o "$work/old" || fail "abi/program.c does not compile"
LD_LIBRARY_PATH=$tree/build/lib expect 0 "$work/old" alone
cc -I "$tree/include" abi/program.c "$tree/build/lib/libodc.so.0" -o "$work/new" || fail "abi/program.c with the new header"
LD_LIBRARY_PATH=$ODC_BUILD_DIR/lib expect 0 "$work/new" alone
cat >"$work/uses.c" <<'C'
#include <odc/odc.h>
#include <stdio.h>
int main(void) {
    odc_setting setting = {.struct_size = sizeof setting, .unit = "?"};
    if (odc_get_setting(0, &setting) != ODC_OK) return 1;
    puts(setting.unit == NULL ? "an older library" : setting.unit);
#ifdef COUNT
    printf("%d\n", odc_count_settings2() > 10);
#endif
    return 0;
}
C
for count in '' -DCOUNT; do
    cc $count -I "$tree/include" "$work/uses.c" "$tree/build/lib/libodc.so.0" -o "$work/uses$count" || fail "a new program $count"
done
LD_LIBRARY_PATH=$tree/build/lib expect 0 "$work/uses-DCOUNT"
same "$out" $'ms\n1'
LD_LIBRARY_PATH=$ODC_BUILD_DIR/lib expect 0 "$work/uses"
same "$out" "an older library"
LD_LIBRARY_PATH=$ODC_BUILD_DIR/lib expect 1 "$work/uses-DCOUNT"
contains "$err" "ODC_0.5"

raise_version() {
    edit include/odc/odc.h 's/^#define ODC_VERSION_MINOR 1/#define ODC_VERSION_MINOR 2/'
    edit packaging/debian/changelog '1i libodc (1:0.2.0-0upstream1) unstable; urgency=medium\n\n  * More.\n'
}
renew_previous() { cp "$tree/include/odc/odc.h" "$tree/lib/api/odc.map" "$tree/packaging/abi/previous/"; }
for steps in 'renew_previous raise_version' 'raise_version renew_previous'; do # before the next version, and with it
    fresh_copy
    for step in $steps; do
        $step
    done
    check 0
done

# broken TEXT STEP...: a fresh copy after these steps is refused with this error.
broken() {
    local words=$1 step
    shift
    fresh_copy
    for step in "$@"; do
        $step
    done
    check 1
    contains "$err" "$words"
}
in_the_released_node() { edit lib/api/odc.map 's/^    odc_wait;/    odc_count_settings2;\n&/'; }
in_the_next_node() { edit lib/api/odc.map 's/^ODC_0.5 { global: /&odc_more; /'; }
in_the_middle() { edit include/odc/odc.h 's/^    const char \*name, \*fallback, \*help;/    const char *name, *unit, *fallback, *help;/'; }
another_type() { edit include/odc/odc.h 's/^    int64_t timeout_ms; /    uint64_t timeout_ms;/'; }
another_value() { edit include/odc/odc.h 's/ODC_F16 = 4, ODC_BYTES = 5/ODC_F16 = 5, ODC_BYTES = 4/'; }
another_argument() { edit include/odc/odc.h 's/^\(ODC_API odc_status odc_plan_cost(const char \*model, \)double/\1float/'; }
an_array() { edit include/odc/odc.h 's/^    const char \*name, \*fallback, \*help;/&\n    uint64_t limits[4];/'; }
padding_at_the_end() { edit include/odc/odc.h 's/^    const char \*name, \*fallback, \*help;/&\n    int32_t unit;/'; }
a_gap() { edit include/odc/odc.h 's/^    const char \*name, \*fallback, \*help;/&\n    int32_t unit;\n    double scale;/'; }
no_struct_size() { edit include/odc/odc.h 's/^typedef enum odc_memory .*/&\ntypedef struct odc_range {\n    uint64_t first, last;\n} odc_range;/'; }
no_value() { edit include/odc/odc.h 's/ODC_BYTES = 5/&, ODC_I8/'; }
another_form() { edit include/odc/odc.h 's/^typedef enum odc_memory .*/&\ntypedef int odc_number;/'; }
unlisted() { edit packaging/abi/declarations.c '/^FIELD(odc_slice, offset/d'; }
no_entry() { edit packaging/debian/changelog 's/^libodc (1:0.1.0-/libodc (1:0.9.0-/'; }
exported_no_more() { edit lib/api/odc.map '/^    odc_abort;/d'; }

broken "FUNCTION(odc_count_settings2, size_t, void)" add_function
broken "FIELD(odc_setting, unit, const char *, 32, 8)" add_field
broken "the library is not what odc.abi says" add_function export_it list build
contains "$err" "odc_count_settings2"
broken "the node ODC_0.1 of lib/api/odc.map was released and must not change" add_function in_the_released_node list build describe
broken "the node ODC_0.5 of lib/api/odc.map was released and must not change" export_it renew_previous in_the_next_node
broken "odc_setting.fallback was at byte 16" in_the_middle list
broken "odc_config.timeout_ms was int64_t" another_type
broken "ODC_F16 was 4" another_value
broken "odc_plan_cost had another type" another_argument
broken 'the fields "uint64_t limits[4]" are not understood' an_array
broken 'odc_setting has 4 bytes of padding after `unit`; put a `reserved` of that size there' padding_at_the_end
broken 'odc_setting has 4 bytes of padding after `unit`; put a `reserved` of that size there' a_gap
broken 'odc_range begins with `uint64_t first;`; begin it with `uint64_t struct_size;`' no_struct_size
broken 'the enumerator "ODC_I8" has no value of its own' no_value
broken "has a typedef or an ODC_API function of a form that is not understood" another_form
broken "declarations.c lacks what the previous release had; put these lines back" unlisted
contains "$err" "FIELD(odc_slice, offset, uint64_t, 24, 8)"
broken "previous/ is of libodc 0.0.0, but packaging/debian/changelog says that 0.1.0 was released before 0.2.0" raise_version
broken "packaging/debian/changelog names neither 0.1.0, which odc.h is of, nor an earlier release" no_entry
broken "programs of the previous release would not run" exported_no_more build describe

fresh_copy
add_function
ODC_SOURCE_DIR=$tree ODC_BUILD_DIR=$ODC_BUILD_DIR expect 1 bash symbols_test.sh
contains "$err" "odc.h (<) and odc.map (>) differ"
strip -g "$tree/build/lib/libodc.so"
check 1
contains "$err" "has no debug information"

[ "$failures" -eq 0 ]

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles odc.hpp in every supported way, tests it with the libodc of build/release, and builds its examples with an installed
# one. Exits with 77 where that is impossible.
set -u
cd "$(dirname "$0")/.." || exit 1
# shellcheck source=tests/harness/shell_checks.sh
. tests/harness/shell_checks.sh
seconds=300

build=$PWD/build/release
source=$PWD/bindings/cpp
for tool in gcc g++ cmake ninja; do
    command -v $tool >/dev/null || { echo "$tool was not found (Debian: g++, cmake, ninja-build)"; exit 77; }
done
for file in lib/libodc.so tools/odc; do
    [ -e "$build/$file" ] || { echo "there is no $build/$file; build the release preset first"; exit 77; }
done
warnings=(-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror)

# Installed, as for a user, in a path with a space.
prefix="$work/a prefix"
expect 0 cmake --install "$build" --prefix "$prefix"
libdir=$(dirname "$(find "$prefix" -name libodc.so)")
export LD_LIBRARY_PATH=$libdir PKG_CONFIG_PATH=$libdir/pkgconfig
odc=$prefix/bin/odc

# compile SOURCE OPTION...: with all warnings, against the installed tree.
compile() {
    expect 0 "${CXX:-g++}" "${warnings[@]}" -I"$prefix/include" "$@" -pthread -L"$libdir" -lodc
}

# ---- odc.hpp names each function of odc.h; each of its files compiles alone, in every way ----
# of FILE...: the functions of odc.h that they name.
of() { grep -hoE '\bodc_[a-z0-9_]+\(|\bodc_get_(transport|setting)\b|\bodc_(gather|scatter_add)_start\b|&odc_version' "$@" | tr -d '(&' | sort -u; }
declared=$(functions_of include/odc/odc.h | sort)
[ "$(wc -l <<<"$declared")" -ge 30 ] || fail "only these functions were found in odc.h: $declared"
missing=$(comm -23 <(echo "$declared") <(of include/odc/odc.hpp include/odc/hpp/*.hpp))
same "$missing" ""
for file in include/odc/odc.hpp include/odc/hpp/*.hpp; do
    [ "$(wc -l <"$file")" -le 600 ] || fail "$file has more than 600 lines"
    expect 0 g++ -std=c++17 "${warnings[@]}" -Iinclude -x c++ -fsyntax-only -include "$file" /dev/null
done
ways=0
for compiler in g++ clang++; do
    command -v $compiler >/dev/null || { echo "skipped: odc.hpp with $compiler, which was not found"; continue; }
    for standard in c++17 c++20 c++2b; do
        for option in "" -fno-rtti -fno-exceptions; do
            expect 0 $compiler -std=$standard ${option:+"$option"} "${warnings[@]}" -Wfloat-equal -I"$prefix/include" -fsyntax-only \
                "$source/tests/uses.cc"
            ways=$((ways + 1))
        done
    done
done
echo "odc.hpp compiles in $ways ways"
expect 1 g++ -std=c++17 -fno-exceptions -I"$prefix/include" -fsyntax-only -x c++ - \
    <<<'#include <odc/odc.hpp>
void f(odc::Context &context) { context.sync(); }'
contains "$err" "without exceptions, hand the call an odc::Status"
expect 1 g++ -std=c++17 -I"$prefix/include" -fsyntax-only -x c++ - <<<'#include <odc/odc.hpp>
void f(odc::Context &context) { context.register_shard<int, int>({"a", 1}); }'
contains "$err" "the halves of a shard are float, double, odc::Bf16, odc::F16, std::byte (parameters) or void"

# ---- incompatible objects do not link ----
echo '#include <odc/odc.hpp>
int rank_of(odc::Context &context) { return context.rank(); }
odc::Context none() { return odc::Context(); }
odc::Status last;' >"$work/callee.cc"
echo '#include <odc/odc.hpp>
int rank_of(odc::Context &context);
odc::Context none();
extern odc::Status last;
int main() { odc::Context context = none(); return last.ok() ? rank_of(context) + 1 : 2; }' >"$work/caller.cc"
cp -r "$prefix/include" "$work/next"
compile "$work/caller.cc" "$work/callee.cc" -std=c++17 -o "$work/fits"
expect 0 "$work/fits"
g++ -c -std=c++17 -I"$prefix/include" "$work/caller.cc" -o "$work/caller.o" || fail "caller.cc"
for number in MAJOR MINOR PATCH; do
    sed "s/\(#define ODC_VERSION_$number\) .*/\1 77/" "$prefix/include/odc/odc.h" >"$work/next/odc/odc.h"
    g++ -c -std=c++17 -I"$work/next" "$work/callee.cc" -o "$work/callee.o" || fail "callee.cc"
    expect 1 g++ "$work/caller.o" "$work/callee.o" -L"$libdir" -lodc -o "$work/fits"
    for name in 'rank_of(' 'none[' 'last['; do
        contains "$err" "undefined reference to \`$name"
    done
done

# ---- tests ----
# tests NAME OPTION...: its output is shown, for its counts.
tests() {
    local name=$1
    shift
    compile "$source/tests/${name}_test.cc" -o "$work/${name}_test" "$@" &&
        timeout "$seconds" "$work/${name}_test" || fail "${name}_test with $*"
}
tests element -std=c++17 -O1
tests library -std=c++17
tests handles -std=c++17
tests handles -std=c++20
tests minibatch -std=c++20
compile "$source/tests/uses.cc" -std=c++17 -fno-exceptions -o "$work/uses"
expect 0 "$work/uses"
same "$(grep -c '^ok$' <<<"$out")" 7

if [ -e build/tsan/lib/libodc.so ]; then
    # With clang, each compiler having a runtime of its own, and with ctest's TSAN_OPTIONS.
    CXX=$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' build/tsan/CMakeCache.txt)
    for name in handles minibatch; do
        TSAN_OPTIONS=halt_on_error=1:suppressions=$PWD/tests/harness/tsan.supp \
            libdir=$PWD/build/tsan/lib LD_LIBRARY_PATH=$PWD/build/tsan/lib tests $name -std=c++17 -g -O1 -fsanitize=thread
    done
    unset CXX
else
    echo "skipped: the tests with ThreadSanitizer: there is no build/tsan/lib/libodc.so"
fi

cuda=$build/tests/fakes/cuda
if [ -e "$cuda/libcuda.so.1" ]; then
    compile "$source/tests/gpu_test.cc" -std=c++17 -Itests/fakes/cuda -o "$work/gpu_test" -L"$cuda" -lcuda
    expect 0 env LD_LIBRARY_PATH="$cuda:$libdir" "$odc" run -n 2 -- "$work/gpu_test"
    same "$(grep -c '1 passed, 0 failed' <<<"$out")" 2
else
    echo "skipped: shards in GPU memory: there is no $cuda/libcuda.so.1"
fi

# ---- another libodc ----
# fake FOLDER SOURCE...: builds a libodc there, all of whose other functions end the program.
fake() {
    local folder=$1 name
    shift
    mkdir -p "$folder"
    {
        echo '#include <unistd.h>'
        for name in $declared; do
            echo "__attribute__((weak)) void $name(void) { _exit(3); }"
        done
    } >"$work/others.c"
    gcc -c "$work/others.c" -o "$work/others.o" && gcc -shared -fPIC -Iinclude -Wl,-soname,libodc.so.0 "$@" "$work/others.o" \
        -o "$folder/libodc.so.0" || fail "the libodc of $folder cannot be built"
}
needed=$(sed -n 's/^#define ODC_VERSION_[A-Z]* //p' include/odc/odc.h | paste -sd.)
compile "$source/tests/uses.cc" -std=c++17 -no-pie -fno-pie -o "$work/uses_at_a_fixed_place"
for number in "7 << 16 | 2 << 8 | 5" 9; do
    echo "unsigned odc_version(void) { return $number; }" >"$work/version.c"
    fake "$work/another version" "$work/version.c"
    major=$(((number) >> 16)).$(((number) >> 8 & 255)).$(((number) & 255))
    for program in uses uses_at_a_fixed_place; do
        LD_LIBRARY_PATH="$work/another version" expect 0 "$work/$program"
        same "$(sort -u <<<"$out")" "libodc $major was loaded from $work/another version/libodc.so.0, but this program was written for libodc $needed and needs ${needed%.*} or a later ${needed%%.*}.x; install that, or put its folder first in LD_LIBRARY_PATH"
        same "$(wc -l <<<"$out")" 8
    done
done
echo "unsigned odc_version(void) { return $(((${needed%%.*} << 16) + 200 * 256)); }" >"$work/version.c"
fake "$work/later" "$work/version.c"
LD_LIBRARY_PATH=$work/later expect 3 "$work/uses" # it is loaded
contains "$out" ok

# The README shows the dynamic linker's errors.
# linker_says STATUS TEXT FOLDER PROGRAM: with the libodc there, as ./program with libodc in /usr/lib.
linker_says() {
    LD_LIBRARY_PATH=$3 expect "$1" "$4"
    contains "$err" "$2"
    contains "$(cat "$source/README.md")" "$(sed "s|$4|./program|g; s|$3|/usr/lib|" <<<"$err")"
}
mkdir "$work/none"
if ldconfig -p | grep -q 'libodc\.so\.0'; then
    echo "skipped: a program without libodc: one is installed here"
else
    linker_says 127 "libodc.so.0: cannot open shared object file" "$work/none" "$work/uses"
fi
echo "ODC_9 { odc_*; };" >"$work/other.map"
fake "$work/other symbols" "$work/version.c" "-Wl,--version-script=$work/other.map"
linker_says 1 "version \`ODC_0.1' not found" "$work/other symbols" "$work/uses"
declared=$(grep -vx odc_get_topology <<<"$declared") fake "$work/lacks a function" "$work/version.c" \
    -Wl,--version-script=lib/api/odc.map
compile "$source/tests/uses.cc" -std=c++17 -Wl,-z,now -o "$work/uses_at_once"
linker_says 127 "undefined symbol: odc_get_topology" "$work/lacks a function" "$work/uses_at_once"

# ---- calls are made to the end; an operation that cannot be waited for ends the job ----
fake "$work/stub" "$source/tests/stub.c"
compile "$source/tests/asked.cc" -std=c++17 -o "$work/asked"
LD_LIBRARY_PATH=$work/stub expect 0 "$work/asked"
same "$out" 'odc_init(1 of 3, a job, a group, a place, a secret, 5000 ms, a host, a device, NULL, interrupted)
odc_register_shard(context, layer, 10 of types 4 and 2, 2 ranks, 1 with 4, 2 with 6, memory 2)
odc_register_shard(context, layer, 10 of types 0 and 3, 0 ranks, memory 1)
odc_register_shard(context, layer, 10 of types 5 and 0, 0 ranks, memory 1)
odc_publish_all(context, stream)
interrupted
odc_gather_start(shard, 10, stream)
odc_wait(context, 7)
odc_abort(context, an operation was dropped, and could not be waited for)
odc_wait(context, 7)
odc_shutdown(context)
odc_destroy(context)'

# ---- the README's program, by pkg-config, in every way ----
awk '/^```cpp$/ {inside = 1; next} /^```$/ {if (inside) exit} inside' "$source/README.md" >"$work/example.cc"
if command -v pkg-config >/dev/null; then
    eval "set -- $(pkg-config --cflags --libs odc)"
    for standard in c++17 c++20; do
        expect 0 g++ -std=$standard "${warnings[@]}" "$work/example.cc" "$@" -o "$work/example"
        expect 0 "$odc" run -n 4 -- "$work/example"
    done
else
    echo "skipped: the README's program: pkg-config was not found"
fi

# ---- the examples ----
# figures FILE: every number of the losses and parameters, in order.
figures() { sed -n 's/^\[0\] //; s/^minibatch.*loss \([0-9.]*\) .*/\1/p; s/^parameters of [a-z]*: //p' "$1" | tr ' ' '\n'; }

# shape: standard input with any figure for any other, and each kind of line once.
shape() { sed 's/[0-9][0-9.]*/0/g' | uniq; }

# looks_as_said PROGRAM FILE: what four ranks print, in FILE, looks like the output in the head of the program's source.
looks_as_said() {
    same "$(shape <"$2")" "$(sed -n '/^#include/q; s/^\/\/ *\(\[0\]\)/\1/p' "$source/examples/$(basename "$1").cc" | shape)"
}

# trains_as_one PROGRAM TOLERANCE OPTION...: four ranks with different numbers of microbatches have the losses of one, within a
# relative tolerance.
trains_as_one() {
    local program=$1 tolerance=$2 size
    shift 2
    for size in 1 4; do
        expect 0 "$odc" run -n $size -- "$program" --minibatches 8 --paragraphs 24 "$@"
        echo "$out" >"$work/by$size"
        same "$(grep -c 'microbatches by rank' "$work/by$size")" 8
    done
    looks_as_said "$program" "$work/by4"
    sed -n 's/.*by rank //p' "$work/by4" | awk '{ for (i = 2; i <= NF; ++i) if ($i != $1) uneven = 1 } END { exit !uneven }' ||
        fail "$program: all ranks have equal numbers of microbatches: $(cat "$work/by4")"
    paste <(figures "$work/by1") <(figures "$work/by4") | awk -v tolerance="$tolerance" -v largest=0 '
        { difference = $1 > $2 ? $1 - $2 : $2 - $1; relative = difference / ($1 > 0 ? $1 : -$1)
          if (!(relative <= largest)) largest = relative }
        NR == 1 { first = $1 }
        NR == 8 && !($1 < first - 0.1) { print "nothing is learnt: " first " to " $1; failed = 1 }
        END { print "one rank and four differ by " largest " at most, of " NR " figures"
              exit failed || NR < 12 || !(largest <= tolerance) }' >"$work/said" ||
        fail "$program: $(cat "$work/said") $(cat "$work/by1" "$work/by4")"
    echo "$(basename "$program"): $(cat "$work/said")"
}

torch=
if build/python/bin/python -c 'import torch' 2>/dev/null || bash tests/venv.sh torch >"$work/why" 2>&1; then
    torch=$(build/python/bin/python -c 'import torch; print(torch.utils.cmake_prefix_path)')
else
    echo "skipped: the example with torch: $(tail -n 1 "$work/why")"
fi
expect 0 cmake -G Ninja -S "$source/examples" -B "$work/examples" -DCMAKE_PREFIX_PATH="$prefix;$torch" \
    -DCMAKE_CXX_FLAGS="-Wall -Wextra"
[ -n "$torch" ] || contains "$out" "train is left out: libtorch was not found"
expect 0 cmake --build "$work/examples"
unset LD_LIBRARY_PATH
trains_as_one "$work/examples/bigram" 1e-5
trains_as_one "$work/examples/bigram" 1e-5 --data lib
[ -z "$torch" ] || trains_as_one "$work/examples/train" 1e-9

# cannot EXAMPLE TEXT OPTION...
cannot() {
    local example=$1 words=$2
    shift 2
    expect 1 "$odc" run -n 1 -- "$work/examples/$example" "$@"
    contains "$out $err" "$words"
}
mkdir "$work/empty"
cannot bigram "/no/such" --data /no/such
cannot bigram "has no text to train on" --data "$work/empty"
cannot bigram "--data wants a folder of text files" --data
[ -z "$torch" ] || cannot train "--data wants a folder of text files" --data
cannot bigram '--minibatches wants a number, not "many"' --minibatches many
cannot bigram "--minibatch is no option; there are --data FOLDER" --minibatch 1

[ "$failures" -eq 0 ]

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every test and check: installs what is missing, builds and tests the release, asan and tsan presets, checks format
# and lint. What only needs cores (the next builds, the linter, the packages) runs behind the tests, which wait most of their
# time. A step that fails is counted and the others still run. The last line sums up. `run.sh release`: only the release
# build with its tests, the format and the Rust crates.
set -u
case "$*" in
'' | release) part=${1:-all} ;;
*)
    echo "usage: tests/run.sh [release]" >&2
    exit 2
    ;;
esac
cd "$(dirname "$0")/.." || exit 1

passed=0
failed=0
skipped=0
logs=$(mktemp -d)
behind=
trap '[ -z "$behind" ] || kill -- -"$behind" 2>/dev/null; rm -rf "$logs"' EXIT

headline() {
    printf '\n==== %s (%s s)\n' "$1" "$SECONDS"
}

# check NAME COMMAND...: one thing that passes or fails.
check() {
    local name=$1
    shift
    headline "$name"
    if "$@"; then
        passed=$((passed + 1))
    else
        echo "FAILED: $name" >&2
        failed=$((failed + 1))
        return 1
    fi
}

skip() {
    headline "$1"
    echo "skipped: $2"
    skipped=$((skipped + 1))
}

# behind NAME WORDS: a check of start_behind, which with status 77 says in its last line why it is not tried here.
behind() {
    behind_is_done "$1" >/dev/null
    if [ $? -eq 77 ]; then
        skip "$2" "$(tail -n 1 "$logs/behind_$1")"
    else
        check "$2" behind_is_done "$1"
    fi
}

# suite PRESET LABELS: the tests of one build, counted one by one.
suite() {
    local log=$logs/$1 status total good left_out
    headline "tests of $1"
    ctest --preset "$1" -L "$2" -j 3 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    total=$(grep -cE '^ *[0-9]+/[0-9]+ Test +#' "$log")
    good=$(grep -cE '^ *[0-9]+/[0-9]+ Test +#.* Passed ' "$log")
    left_out=$(grep -cE '^ *[0-9]+/[0-9]+ Test +#.*\*\*\*Skipped ' "$log")
    passed=$((passed + good))
    skipped=$((skipped + left_out))
    failed=$((failed + total - good - left_out))
    if [ "$total" -eq 0 ]; then
        echo "FAILED: $1 has no tests with the label $2" >&2
        failed=$((failed + 1))
    elif [ "$status" -ne 0 ] && [ $((good + left_out)) -eq "$total" ]; then
        echo "FAILED: ctest ended with status $status, though every test that it named passed" >&2
        failed=$((failed + 1))
    fi
}

# build PRESET OPTION...
build() {
    local preset=$1
    shift
    cmake --preset "$preset" "$@" && cmake --build --preset "$preset"
}

# later NAME COMMAND...: of start_behind, for behind_is_done.
later() {
    local name=$1
    shift
    "$@" >"$logs/behind_$name" 2>&1 </dev/null
    echo $? >"$logs/behind_$name.status"
}

# With clang, where it has its runtime; the other builds are gcc's. A cache of another compiler would lose the preset's flags.
build_tsan() {
    local clang=()
    if [ -e "$(clang++ -print-file-name="libclang_rt.tsan-$(uname -m).a" 2>/dev/null)" ]; then
        clang=(-DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++)
    fi
    rm -rf build/tsan/CMakeCache.txt build/tsan/CMakeFiles
    build tsan -DODC_TOOLS=OFF -DODC_TESTS=ON "${clang[@]}" && grep -q 'CXX_FLAGS.*-fsanitize=thread' build/tsan/CMakeCache.txt
}

# What no test of the suites needs, on the cores that they leave: see behind_is_done.
start_behind() {
    set -m
    (
        trap - EXIT
        chrt --idle --pid 0 "$BASHPID" # without it slower, but as right
        later asan build asan -DODC_TOOLS=OFF -DODC_TESTS=ON
        later tsan build_tsan
        later lint check_tidy
        later packages bash tests/packages.sh release deb rpm root &
        later wheels bash tests/packages.sh python
        later subproject bash tests/subproject.sh
        wait
        later emulated bash tests/emulated.sh &
        # Its tests have deadlines.
        later bare_root chrt --other 0 nice bash tests/bare_root.sh
        wait
    ) &
    behind=$!
    set +m
}

# behind_is_done NAME: waits for it, and then is as it was.
behind_is_done() {
    while [ ! -s "$logs/behind_$1.status" ] && kill -0 "$behind" 2>/dev/null; do
        sleep 0.2
    done
    cat "$logs/behind_$1"
    [ -s "$logs/behind_$1.status" ] && return "$(cat "$logs/behind_$1.status")"
}

# Not odc.h: the columns of its comments are set by hand.
check_format() {
    find cuda include lib tools tests bindings/cpp -name '*.h' -o -name '*.hpp' -o -name '*.cc' -o -name '*.c' -o -name '*.cu' |
        grep -vx include/odc/odc.h | sort | xargs clang-format-14 --dry-run --Werror
}

# Several files as one, as what they include is what takes long.
check_tidy() {
    command -v clang-tidy-14 >/dev/null || { echo "clang-tidy-14 was not found"; return 77; }
    rm -rf build/lint
    cmake --preset release -B build/lint -DCMAKE_UNITY_BUILD=ON -DODC_TOOLS=ON -DODC_TESTS=OFF >/dev/null || return 1
    find build/lint -path '*/Unity/*.cxx' -print0 |
        xargs -0 -P "$(nproc)" -n 1 clang-tidy-14 -p build/lint --quiet 2>"$logs/tidy"
    local status=$?
    grep -v 'warnings generated\|Suppressed\|Use -header-filter' "$logs/tidy" >&2
    no_unused_using || status=1
    return $status
}

# clang-tidy tells them of the file that it is handed, which here stands for several.
no_unused_using() {
    local file name found=0
    for file in $(git ls-files "lib/*.cc" "tools/*.cc"); do
        while read -r name; do
            [ "$(grep -cw "$name" "$file")" -gt 1 ] || { echo "$file: using names $name, which is not used" >&2; found=1; }
        done < <(sed -n 's/^using [^=]*::\([A-Za-z_]*\);$/\1/p' "$file")
    done
    return "$found"
}

# fuzz NAME SOURCE...: feeds tests/fuzz/NAME_fuzz.cc, and these of lib/, for a bounded time.
fuzz() {
    local name=$1 seed=${ODC_TEST_SEED:-$RANDOM} source sources=()
    shift
    for source in "$@"; do
        sources+=("lib/$source")
    done
    clang++-14 -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -I cuda -I lib -I include \
        "tests/fuzz/${name}_fuzz.cc" "${sources[@]}" -lhwloc -o "$logs/${name}_fuzz" || return 1
    echo "seed: ODC_TEST_SEED=$seed"
    "$logs/${name}_fuzz" -seed="$seed" -max_len=9000 -max_total_time=15 -artifact_prefix="$logs/" \
        >"$logs/${name}_words" 2>&1 && tail -n 1 "$logs/${name}_words" && return
    grep -v 'NEW\|REDUCE\|pulse' "$logs/${name}_words" >&2
    return 1
}

check_decoders() {
    fuzz notice transport/fabric/control_message.cc base/error.cc && fuzz card bootstrap/peer_info.cc routing/nic_address.cc topology/machine.cc topology/gpu_link.cc topology/nic.cc base/settings.cc base/error.cc
}

check_install() {
    bash tests/install.sh test
    # kernels_test.sh sees less of the kernels without it.
    ! command -v nvcc >/dev/null || bash tests/venv.sh disassembler || [ $? -eq 77 ]
    # What nvml_header_test.sh compares with.
    bash tests/venv.sh nvml || [ $? -eq 77 ]
    # What perf_test.sh compares with.
    bash tests/venv.sh scipy || [ $? -eq 77 ]
}

# binding NAME [COMMAND...]: what the tests of tests/NAME.sh, or of the command, counted, and the checks before them as one.
binding() {
    local log=$logs/$1 status command
    command=("${@:2}")
    [ $# -gt 1 ] || command=(bash "tests/$1.sh")
    headline "$1"
    "${command[@]}" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    if [ "$status" -eq 77 ]; then
        skip "$1" "$(tail -n 1 "$log")"
        return
    fi
    counted() { grep -oE "[0-9]+ $1\b.* in " "$log" | awk '{ sum += $1 } END { print sum + 0 }'; }
    passed=$((passed + $(counted passed)))
    skipped=$((skipped + $(counted skipped)))
    failed=$((failed + $(counted failed)))
    if [ "$status" -ne 0 ] && [ "$(counted failed)" -eq 0 ]; then
        echo "FAILED: $1" >&2
        failed=$((failed + 1))
    fi
}

beyond_release() {
    local preset
    if [ -e "$(clang++-14 -print-file-name="libclang_rt.fuzzer-$(uname -m).a" 2>/dev/null)" ]; then
        check "random words of other hosts" check_decoders
    else
        skip "random words of other hosts" "clang++-14 with libFuzzer was not found"
    fi
    binding python
    # The shell tests are about the release build; the sanitizers are for what the C tests reach.
    for preset in asan tsan; do
        if check "build $preset" behind_is_done "$preset"; then
            suite "$preset" '^c$'
        fi
    done
    binding cpp # after tsan's library is built
    behind lint "lint"
    binding packages behind_is_done packages
    binding wheels behind_is_done wheels
    behind subproject "libodc as a part of another project"
    binding emulated behind_is_done emulated
    behind bare_root "the release on a bare Debian"
}

check "install what is missing" check_install
# shellcheck source=tests/compiler_cache.sh
. tests/compiler_cache.sh
released=
check "build release" build release -DODC_TOOLS=ON -DODC_TESTS=ON && released=yes
[ "$part" = release ] || start_behind
[ -z "$released" ] || suite release .
if command -v clang-format-14 >/dev/null; then
    check "format" check_format
else
    skip "format" "clang-format-14 was not found"
fi
binding rust
[ "$part" = release ] || beyond_release

printf '\n'
summary="$passed passed, $failed failed"
[ "$skipped" -eq 0 ] || summary="$summary, $skipped skipped"
echo "$summary"
[ "$failed" -eq 0 ]

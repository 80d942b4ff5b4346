# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# The tiers of run.sh. To be sourced after counts.sh.

# build PRESET OPTION...
build() {
    local preset=$1
    shift
    cmake --preset "$preset" "$@" >/dev/null && cmake --build --preset "$preset"
}

build_release() {
    build release -DODC_TOOLS=ON -DODC_TESTS=ON
}

# Fails also if the compiler warns of anything that this builds; what a compiler cache has keeps its warnings.
build_release_without_warnings() {
    build_release 2>&1 | tee "$logs/build"
    [ "${PIPESTATUS[0]}" -eq 0 ] && ! grep 'warning: ' "$logs/build"
}

# build_sanitized PRESET FLAG: with clang, which takes half of gcc's time, where its runtime is installed; the other builds use gcc. A
# CMake cache of another compiler would lose the preset's flags.
build_sanitized() {
    local preset=$1 flag=$2 clang=()
    if [ -e "$(clang++ -print-file-name="libclang_rt.$preset-$(uname -m).a" 2>/dev/null)" ]; then
        clang=(-DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++)
    fi
    rm -rf "build/$preset/CMakeCache.txt" "build/$preset/CMakeFiles"
    build "$preset" -DODC_TOOLS=OFF -DODC_TESTS=ON "${clang[@]}" &&
        grep -q "CXX_FLAGS.*-fsanitize=$flag" "build/$preset/CMakeCache.txt"
}

# What some tests need: a disassembler of GPU code, NVML's header, and scipy.
install_all() {
    bash tests/install.sh full || return
    ! command -v nvcc >/dev/null || bash tests/venv.sh disassembler || [ $? -eq 77 ] || return
    bash tests/venv.sh nvml || [ $? -eq 77 ] || return
    bash tests/venv.sh scipy || [ $? -eq 77 ]
}

# Installs by COMMAND... what is missing; the builds after it use the compiler cache that it may have brought.
install_missing() {
    check "install what is missing" "$@"
    # shellcheck source=tests/harness/compiler_cache.sh
    . tests/harness/compiler_cache.sh
}

# ---- quick: under a minute ----
tier_quick() {
    tests_at_once=$((1 + 2 * $(nproc))) # most of them wait
    check "build release" build_release && suite release -L '^quick$'
}

# ---- the default: before a commit ----
# tier_commit [OPTION OF CTEST...]
tier_commit() {
    tests_at_once=$((1 + 2 * $(nproc)))
    install_missing bash tests/install.sh test
    check "build release" build_release || return
    lane commit_lane
    suite release -LE '^full$' "$@"
    check "format" done_later format
    binding "python without torch" done_later python
}

# ---- the default without what is the same on each system: programs whose objects and libraries are ----
tier_system() {
    tier_commit -L '^(quick|shell)$'
}

commit_lane() {
    later python bash tests/python.sh quick
    later format bash tests/harness/lint.sh format
}

# ---- release: everything about the release build ----
tier_release() {
    install_missing install_all
    check "build release" build_release_without_warnings && suite release
    check "format" bash tests/harness/lint.sh format
    binding rust bash tests/rust.sh
}

# ---- full ----
tier_full() {
    local preset
    install_missing install_all
    check "build release" build_release_without_warnings || return
    lane builds_lane
    lane packages_lane
    lane bindings_lane
    suite release
    check "random words of other hosts" bash tests/fuzz/run.sh
    # The shell tests are for the release build; the sanitizers are for the code that the C tests reach.
    for preset in asan tsan; do
        check "build $preset" done_later $preset && suite $preset -L '^sanitizers$'
    done
    binding cpp bash tests/cpp.sh # after tsan's library is built
    binding rust done_later rust
    binding python done_later python
    check "format" bash tests/harness/lint.sh format
    check "lint" done_later lint
    check "libodc as a part of another project" done_later subproject
    binding packages done_later packages
    binding wheels done_later wheels
    binding emulated done_later emulated
    check "tests/run.sh system on a bare Debian" done_later bare_root
}

# Work that only needs cores runs behind the tests, which wait most of the time.
builds_lane() {
    chrt --idle --pid 0 "$BASHPID" # without it only slower
    later asan build_sanitized asan address
    later tsan build_sanitized tsan thread
    later lint bash tests/harness/lint.sh tidy
    later wheels bash tests/packaging/packages.sh python
    later subproject bash tests/packaging/subproject.sh
    later emulated bash tests/emulated.sh
}

packages_lane() {
    chrt --idle --pid 0 "$BASHPID"
    later packages bash tests/packaging/packages.sh release deb rpm root # takes longest
}

# Tests with deadlines of their own.
bindings_lane() {
    later python bash tests/python.sh
    later rust bash tests/rust.sh
    later bare_root nice bash tests/packaging/bare_root.sh system
}

# ---- NAME... ----
tier_named() {
    local plan targets tests
    [ -e build/release/build.ninja ] || cmake --preset release -DODC_TOOLS=ON -DODC_TESTS=ON >/dev/null || exit
    cmake --build --preset release --target build.ninja >/dev/null # in case a test has been added
    plan=$(python3 tests/harness/named.py build/release/tests/needed.txt "$@") || exit
    # of WHAT: these lines of the plan.
    of() { sed -n "s/^$1 //p" <<<"$plan"; }
    mapfile -t targets < <(of target)
    if [ ${#targets[@]} -gt 0 ]; then
        check "build" cmake --build --preset release --target "${targets[@]}" || return
        suite release -R "^($(of ctest | paste -sd '|'))\$"
    fi
    mapfile -t tests < <(of pytest)
    [ ${#tests[@]} -eq 0 ] || binding python bash tests/python.sh "${tests[@]}"
}

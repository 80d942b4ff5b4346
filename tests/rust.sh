#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Rust crates, offline, with the libodc of build/release, and checks and tests them. Exits with 77 where that is
# impossible.
set -u
cd "$(dirname "$0")/.." || exit 1
# shellcheck source=tests/harness/shell_checks.sh
. tests/harness/shell_checks.sh
seconds=300

for tool in cargo rustc cc; do
    command -v $tool >/dev/null || { echo "$tool was not found (Debian: cargo, rustc, gcc)"; exit 77; }
done
build=$PWD/build/release
[ -e "$build/lib/libodc.so" ] || { echo "there is no $build/lib/libodc.so; build the release preset first"; exit 77; }
export ODC_LIB_DIR=$build/lib LD_LIBRARY_PATH=$build/lib CARGO_TARGET_DIR=$PWD/build/rust CARGO_NET_OFFLINE=true
# cargo locks a file there, even offline, and fails where it cannot write, such as in the home of a user who has none.
cargo_home=${CARGO_HOME:-~/.cargo}
{ mkdir -p "$cargo_home" && [ -w "$cargo_home" ]; } 2>/dev/null || export CARGO_HOME=$PWD/build/cargo
[ ! -x "$build/tools/odc" ] || export ODC=$build/tools/odc
cd bindings/rust || exit 1

# has WHAT: whether this part of cargo is installed; if not, prints that.
has() {
    cargo "$1" --version >/dev/null 2>&1 || { echo "skipped: cargo $1 was not found"; return 1; }
}

# tests OPTION...: its output is shown, for its counts.
tests() {
    cargo test --locked "$@" || fail "cargo test $*"
}

has fmt && expect 0 cargo fmt --check
has clippy && expect 0 cargo clippy --locked --all-targets -- -D warnings
RUSTDOCFLAGS="-D warnings" expect 0 cargo doc --locked --no-deps
expect 0 cargo build --locked --examples
tests --lib --tests -- --show-output # prints the skipped ones and why
expect 101 env ODC=/no/such cargo test --locked --test example
contains "$out" 'ODC names "/no/such", which cannot be run: No such file'
# Error codes of compile_fail tests are checked only with this.
RUSTC_BOOTSTRAP=1 tests --doc
if [ -e "$build/tests/fakes/cuda/libcuda.so.1" ]; then
    LD_LIBRARY_PATH=$build/tests/fakes/cuda:$LD_LIBRARY_PATH ODC_RUST_TEST_CUDA=$build/tests/fakes/cuda \
        tests --test gpu -- --ignored
else
    echo "skipped: shards in GPU memory: there is no $build/tests/fakes/cuda/libcuda.so.1"
fi

# The oldest supported Rust, if it is in the path or Debian's.
oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' odc/Cargo.toml odc-sys/Cargo.toml | sort -u)
same "$(wc -l <<<"$oldest")" 1 # all promise the same
grep -qxF "Rust $oldest or later" <(grep -o '^Rust [0-9.]* or later' README.md) ||
    fail "README.md does not promise Rust $oldest, as Cargo.toml does"
tried=
while read -r rustc; do
    [[ -z $tried && $("$rustc" --version 2>&1) == "rustc $oldest."* ]] || continue
    RUSTC=$rustc CARGO_TARGET_DIR=$PWD/../../build/rust-$oldest \
        expect 0 "${rustc%rustc}cargo" check --locked --workspace --all-targets
    tried="tried with $("$rustc" --version), too"
done < <(type -ap rustc; echo /usr/bin/rustc)
echo "${tried:-skipped: Rust $oldest, the oldest that is promised: only $(rustc --version) was found (Debian 12: rustc, cargo)}"

# The build script's errors where it finds no libodc, and that it finds one by pkg-config in a path with a space and a letter
# that is not ASCII.
prefix="$work/a préfix"
mkdir -p "$prefix/lib/pkgconfig"
ln -s "$build"/lib/libodc.so* "$prefix/lib/"
sed "s|^prefix=.*|prefix=\${pcfiledir}/../..|" "$build/odc.pc" >"$prefix/lib/pkgconfig/odc.pc"
export CARGO_TARGET_DIR=$work/target
expect 101 env ODC_LIB_DIR=/no/such cargo build -p odc-sys
contains "$err" 'ODC_LIB_DIR is "/no/such", but there is no libodc.so in it; libodc 0.1 or a later 0.x is needed: set it to the folder'
expect 101 env ODC_LIB_DIR=../x cargo build -p odc-sys
contains "$err" 'ODC_LIB_DIR is "../x", which is relative; give an absolute path'
expect 101 env ODC_LIB_DIR=$'/x\xff' cargo build -p odc-sys
contains "$err" 'ODC_LIB_DIR is "/x\xFF", which is not UTF-8'
unset ODC_LIB_DIR
export PKG_CONFIG_LIBDIR=$work PKG_CONFIG_PATH=
expect 101 cargo build -p odc-sys
contains "$err" "libodc was not found: ODC_LIB_DIR is not set, and pkg-config says: "
contains "$err" "libodc 0.1 or a later 0.x is needed, and what it requires: install its development files, name the folder of its odc.pc in PKG_CONFIG_PATH, or set ODC_LIB_DIR to the folder of libodc.so"
expect 101 env PKG_CONFIG=/no/such cargo build -p odc-sys
contains "$err" "ODC_LIB_DIR is not set, and /no/such cannot be run (No such file or directory"
sed 's/^Version:.*/Version: 1.0.0/; s|^prefix=.*|prefix=/opt/odc|' "$prefix/lib/pkgconfig/odc.pc" >"$work/odc.pc"
expect 101 cargo build -p odc-sys
contains "$err" "libodc 1.0.0 was found in /opt/odc/lib: ODC_LIB_DIR is not set, and pkg-config says: "
contains "$err" "libodc 0.1 or a later 0.x is needed"
if command -v pkg-config >/dev/null; then
    export PKG_CONFIG_LIBDIR=$prefix/lib/pkgconfig
    expect 0 cargo build --example train
    PKG_CONFIG_SYSROOT_DIR=/a/sysroot expect 0 cargo build -vv -p odc-sys
    contains "$err$out" "native=/a/sysroot/" # pkg-config was called again
    PKG_CONFIG_LIBDIR=$work/none expect 101 cargo build -p odc-sys
    contains "$err" "libodc was not found"
    mv "$prefix" "$work/"$'a pr\xe9fix'
    PKG_CONFIG_LIBDIR=$work/$'a pr\xe9fix'/lib/pkgconfig expect 101 cargo build -p odc-sys
    contains "$err" "which is not UTF-8, and cargo takes no such path"
fi

[ "$failures" -eq 0 ]

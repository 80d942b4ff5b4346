#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the missing packages on Debian and Ubuntu; elsewhere it prints their names and fails if a tool is missing.
#
# usage: tests/install.sh build | demo | test | full
#   build   for the library and the command
#   demo    for tools/demo.sh
#   test    for these and the tests before a commit
#   full    for all tests
set -eu
# shellcheck source-path=SCRIPTDIR source=harness/usage.sh
. "$(dirname "$0")/harness/usage.sh"

build="g++ cmake ninja-build pkg-config libhwloc-dev libexpat1-dev libsodium-dev libhwy-dev libcli11-dev nlohmann-json3-dev libfmt-dev libfabric-dev"
# The compilers and checkers after the first line are used where they are available.
test="libcmocka-dev python3 python3-venv procps binutils iproute2"
optional="abigail-tools patchelf ccache debhelper dh-python pkgconf libpmix-dev clang clang-format-14 openmpi-bin libopenmpi-dev mandoc zsh"
# 600 MB that only run.sh's release and full use.
full="lintian debootstrap autopkgtest rpm rpmlint libclang-rt-14-dev clang-tidy-14 qemu-user g++-aarch64-linux-gnu cargo rustc \
libbenchmark-dev libbenchmark-tools"

# What build names, by Fedora's names.
fedora="gcc-c++ cmake ninja-build pkgconf-pkg-config hwloc-devel expat-devel libsodium-devel highway-devel libfabric-devel \
fmt-devel json-devel cli11-devel"

# Any installed cargo will do; in addition Debian 12's shows that the oldest supported Rust works.
command -v cargo >/dev/null || full="$full rustfmt rust-clippy"

case ${1:-} in
build) wanted=$build optional= ;;
demo) wanted="$build python3 python3-venv" optional= ;;
test) wanted="$build $test" ;;
full) wanted="$build $test" optional="$optional $full" ;;
*) wrong_usage ;;
esac

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    echo "This is neither Debian nor Ubuntu; what these Debian packages hold is needed: $wanted" >&2
    [ -z "$optional" ] || echo "and, for some checks: $optional" >&2
    ! command -v dnf >/dev/null || echo "For the build on Fedora: dnf install $fedora" >&2
    for tool in g++ cmake ninja pkg-config; do
        command -v $tool >/dev/null || { echo "$tool was not found" >&2; exit 1; }
    done
    exit 0
fi

installed() {
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

missing=
for package in $wanted $optional; do
    installed "$package" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

as_root=
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "Needed, and only root can install it:$missing" >&2; exit 1; }
    as_root=sudo
fi
echo "Will install with apt-get:$missing"
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -qq || echo "apt-get update failed; going on with the lists there are" >&2
needed=
for package in $missing; do
    if apt-cache show "$package" >/dev/null 2>&1; then
        needed="$needed $package"
    elif [[ " $optional " == *" $package "* ]]; then
        echo "$package is not to be had here; what needs it is left out"
    else
        echo "$package is not to be had here, and the build needs it" >&2
        exit 1
    fi
done
# shellcheck disable=SC2086
[ -z "$needed" ] || apt-get install -qq -y --no-install-recommends --print-uris $needed </dev/null |
    awk '{ bytes += $3 } END { printf "to download: %.0f MB\n", bytes / 1e6 }'
# shellcheck disable=SC2086
[ -z "$needed" ] || $as_root apt-get install -qq -y --no-install-recommends $needed </dev/null

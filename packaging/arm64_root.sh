#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Unpacks in FOLDER/system Debian's packages for arm64 that libodc is built and tried with, and installs none of them.
# Done once. Exits with 77, and the reason in the last line, where they cannot be had.
#
# usage: packaging/arm64_root.sh FOLDER
set -u
# shellcheck source-path=SCRIPTDIR source=../tests/harness/usage.sh
. "$(dirname "$0")/../tests/harness/usage.sh"
takes 1 1 "$@"

folder=$(realpath -m "$1")
packages=$folder/packages
wanted="libc6-dev libstdc++-12-dev libhwloc-dev libexpat1-dev libsodium-dev libhwy-dev libfmt-dev libcli11-dev libcmocka-dev \
libfabric-dev nlohmann-json3-dev python3"
[ "$(cat "$folder/system/complete" 2>/dev/null)" != "$wanted" ] || exit 0
for tool in apt-get dpkg-deb; do
    command -v $tool >/dev/null || { echo "$tool was not found"; exit 77; }
done

# Debian's apt with an empty system and its own folders.
arm64_apt() {
    : >"$packages/status"
    timeout 900 apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Install-Recommends=false \
        -o Dir::State="$packages/state" -o Dir::State::status="$packages/status" -o Dir::Cache="$packages/cache" \
        -o Debug::NoLocking=true "$@" >"$packages/log" 2>&1 </dev/null
}

mkdir -p "$packages/state/lists/partial" "$packages/cache/archives/partial"
# shellcheck disable=SC2086
if ! arm64_apt update || ! arm64_apt -y --download-only install $wanted; then
    echo "packages for arm64 cannot be had: $(tail -n 1 "$packages/log")"
    exit 77
fi
for package in "$packages"/cache/archives/*.deb; do
    dpkg-deb -x "$package" "$folder/system" || exit 1
done
echo "$wanted" >"$folder/system/complete"

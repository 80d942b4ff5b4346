#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the committed sources on a fresh Debian of another release, with its compiler and its libfabric, and runs the release
# tests there. Needs root, debootstrap and 3 GB; removes what it made. DEBIAN_MIRROR: where packages come from (default:
# debootstrap's).
#
# usage: tests/packaging/debian.sh SUITE [ARGUMENT OF CTEST...], such as tests/packaging/debian.sh trixie
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../harness/usage.sh
. "$(dirname "$0")/../harness/usage.sh"

takes 1 $# "$@"
suite=$1
shift
repository=$(cd "$(dirname "$0")/../.." && pwd)
[ "$(id -u)" -eq 0 ] || { echo "debian.sh: only root can make a root directory" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "debian.sh: debootstrap is needed (apt-get install debootstrap)" >&2; exit 1; }

root=$(mktemp -d)
inside=
# Mounts and processes end with their namespaces.
trap '[ -z "$inside" ] || { kill -KILL "$inside"; wait "$inside"; } 2>/dev/null || true; rm -rf --one-file-system "$root"' EXIT
trap 'exit 1' INT TERM
chmod 755 "$root"
export root suite repository
# The root is a mount point, otherwise `ip netns` could not make hosts there.
unshare --mount --pid --fork --kill-child --propagation private bash -euc '
    mount --bind "$root" "$root"
    . "$repository/tests/packaging/debian_root.sh"
    make_debian_root "$root" "$suite" "${DEBIAN_MIRROR:-}" --include=ca-certificates,git
    git clone --quiet "$repository" "$root/src"
    exec chroot "$root" /bin/bash -euc "
        cd /src
        tests/install.sh full
        cmake --preset release -DODC_TESTS=ON
        cmake --build --preset release
        build/release/tools/odc info
        ctest --preset release -j 2 \"\$@\"" debian.sh "$@"' debian.sh "$@" &
inside=$!
status=0
wait "$inside" || status=$?
inside=
exit "$status"

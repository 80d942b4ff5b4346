#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The part of packages.sh with its own mounts and processes: makes a root in $work/system, installs the packages there, tries
# them, purges them, checks what is left, and runs their autopkgtests.
set -eu
: "${work:?}" "${suite:?}" "${version:?}"
root=$work/system
# shellcheck source=tests/packaging/debian_root.sh
. "$(dirname "$0")/debian_root.sh"
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
inside() {
    chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
}
# File names, without those of apt, dpkg and logs, and of groups that dependencies add.
files() {
    (cd "$root" && find . -xdev -path ./packages -prune -o -path ./var/lib/apt -prune -o -path ./var/cache -prune -o \
        -path ./var/lib/dpkg -prune -o -path ./var/log -prune -o -path ./run -prune -o \
        -path './etc/*-' -o -print | LC_ALL=C sort)
}

# The root is a mount itself, as in debian.sh.
mount --bind "$root" "$root"
make_debian_root "$root" "$suite" "${mirror:-}"
echo 'Acquire::Languages "none";' >"$root/etc/apt/apt.conf.d/no-translations"
inside apt-get update -q
files >"$work/before"

packages="libodc0 libodc-dev odc-tools python3-libodc"
paths=
for package in $packages; do
    paths="$paths $(cd "$root" && echo ./packages/"${package}"_*.deb)"
done
# shellcheck disable=SC2086
inside apt-get install -q -y $paths
inside odc info | tee /dev/stderr | grep -q "^libodc $version, Release"
inside python3 -c 'import libodc'
# Debian's own odc and libodc-dev are another program; they must not upgrade ours.
for change in dist-upgrade "remove libodc0"; do
    # shellcheck disable=SC2086
    would=$(inside apt-get -s -q $change)
    ! grep -E '^Inst [a-z0-9-]*odc' <<<"$would" || { echo "apt-get $change would install what is named above" >&2; exit 1; }
done
if inside apt-cache show odc >/dev/null 2>&1; then
    would=$(inside apt-get -s -q install odc)
    grep -q '^Remv odc-tools ' <<<"$would" || { echo "odc of $suite can be installed beside odc-tools" >&2; exit 1; }
fi
# shellcheck disable=SC2086
inside apt-get purge -q -y $packages
# Not kept because packages of the base system suggest them.
inside apt-get -o APT::AutoRemove::RecommendsImportant=false -o APT::AutoRemove::SuggestsImportant=false \
    autoremove --purge -q -y
files >"$work/after"
diff "$work/before" "$work/after" || { echo "files are left after the purge, see above" >&2; exit 1; }

# With nothing of the caller's environment, such as CMake's compiler launcher, but the folder for temporary files on both sides.
mkdir -p "$root${TMPDIR:=/tmp}"
env -i PATH="$PATH" LC_ALL=C.UTF-8 HOME="$work" TMPDIR="$TMPDIR" autopkgtest --output-dir "$work/autopkgtest" \
    --no-built-binaries "$root"/packages/*.deb "$work"/first/libodc_*.dsc -- chroot "$root" ||
    { tail -n 15 "$work"/autopkgtest/*-std*; exit 1; }

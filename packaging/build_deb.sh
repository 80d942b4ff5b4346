#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds Debian's packages of a source release into a folder. Needs the Build-Depends of packaging/debian/control,
# and dpkg-dev.
#
# usage: packaging/build_deb.sh RELEASE FOLDER [OPTION OF dpkg-buildpackage...]
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../tests/harness/usage.sh
. "$(dirname "$0")/../tests/harness/usage.sh"
takes 2 $# "$@"

release=$1
folder=$2
shift 2
case $(basename "$release") in
libodc-[0-9]*.tar.gz) ;;
*)
    echo "build_deb.sh: $release is no source release; make one by packaging/source_release.sh" >&2
    exit 2
    ;;
esac
version=$(basename "$release" .tar.gz)
version=${version#libodc-}
mkdir -p "$folder"
if [ -e "$folder/libodc-$version" ]; then
    echo "build_deb.sh: there is a $folder/libodc-$version; remove it, or name an empty folder" >&2
    exit 2
fi
cp "$release" "$folder/libodc_$version.orig.tar.gz"
tar -xzf "$release" -C "$folder"
cd "$folder/libodc-$version"
cp -r packaging/debian debian
packaged=$(dpkg-parsechangelog -S Version)
packaged=${packaged#*:}
packaged=${packaged%-*}
if [ "$packaged" != "$version" ]; then
    echo "build_deb.sh: packaging/debian/changelog is of version $packaged, the release of $version: add an entry" >&2
    exit 1
fi
exec dpkg-buildpackage -us -uc "$@"

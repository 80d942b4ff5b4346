#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the source release libodc-VERSION.tar.gz of a commit (HEAD). The same commit gives the same bytes. Prints the
# file's name.
#
# usage: packaging/source_release.sh FOLDER [COMMIT]
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../tests/harness/usage.sh
. "$(dirname "$0")/../tests/harness/usage.sh"
takes 1 2 "$@"

folder=$(cd "$1" && pwd)
commit=${2:-HEAD}
cd "$(dirname "$0")/.."
version=$(git show "$commit:include/odc/odc.h" | sed -n 's/^#define ODC_VERSION_[A-Z]* //p' | paste -sd.)
release=$folder/libodc-$version.tar.gz
TZ=UTC git -c tar.umask=0022 archive --format=tar --prefix="libodc-$version/" "$commit" | gzip -9n >"$release"
echo "$release"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the source release libodc-VERSION.tar.gz of a commit (HEAD): source_release.sh FOLDER [COMMIT]. The same commit gives
# the same bytes. Prints the file's name.
set -euo pipefail

folder=${1:?usage: source_release.sh FOLDER [COMMIT]}
folder=$(cd "$folder" && pwd)
commit=${2:-HEAD}
cd "$(dirname "$0")/.."
version=$(git show "$commit:include/odc/odc.h" | sed -n 's/^#define ODC_VERSION_[A-Z]* //p' | paste -sd.)
release=$folder/libodc-$version.tar.gz
TZ=UTC git -c tar.umask=0022 archive --format=tar --prefix="libodc-$version/" "$commit" | gzip -9n >"$release"
echo "$release"

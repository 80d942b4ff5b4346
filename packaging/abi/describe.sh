#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the binary interface of a libodc as abidw (libabigail) sees it in a build with debug information, the same from
# every folder. odc.abi is made by it.
#
# usage: packaging/abi/describe.sh LIBRARY, such as packaging/abi/describe.sh build/dev/lib/libodc.so >packaging/abi/odc.abi
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../../tests/harness/usage.sh
. "$(dirname "$0")/../../tests/harness/usage.sh"
takes 1 1 "$@"

library=$1
headers=$(cd "$(dirname "$0")/../../include" && pwd)

# abidw would describe the symbols only, and abidiff would find that equal to anything.
readelf --section-headers --wide "$library" | grep '\.debug_info' >/dev/null || {
    echo "describe.sh: $library has no debug information; describe that of another preset, such as dev" >&2
    exit 1
}
# Handles are opaque: given the headers' folder, abidw omits what only the library knows of them.
abidw --headers-dir "$headers" --drop-private-types --exported-interfaces-only --no-architecture --no-corpus-path \
    --no-comp-dir-path --no-show-locs --no-elf-needed --no-parameter-names "$library" |
    sed -e "s| path='[^']*/| path='|" -e '1a\  <!-- SPDX-License-Identifier: Apache-2.0 -->'

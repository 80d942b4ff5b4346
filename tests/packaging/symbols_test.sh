#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# libodc.so exports exactly the functions that odc.map lists and odc.h declares ODC_API; and exit() destroys no object of the
# library, since other threads and atexit handlers may still use it.
set -u
: "${ODC_SOURCE_DIR:?the folder of the sources}" "${ODC_BUILD_DIR:?the folder of the build}"
# shellcheck source=tests/harness/shell_checks.sh
. "$(dirname "$0")/../harness/shell_checks.sh"

exported=$(nm -D --defined-only --format=posix "$ODC_BUILD_DIR/lib/libodc.so" | awk '$2 == "T" {sub(/@.*/, "", $1); print $1}' |
    LC_ALL=C sort)
other=$(nm -D --defined-only --format=posix "$ODC_BUILD_DIR/lib/libodc.so" | awk '$2 != "T" && $2 != "A" {print $1}')
mapped=$(grep -o 'odc_[a-z0-9_]*;' "$ODC_SOURCE_DIR/lib/api/odc.map" | tr -d ';' | LC_ALL=C sort)
declared=$(functions_of "$ODC_SOURCE_DIR/include/odc/odc.h" | LC_ALL=C sort)

failed=0
compare() {
    if [ "$2" != "$4" ]; then
        echo "$1 (<) and $3 (>) differ:" >&2
        diff <(echo "$2") <(echo "$4") >&2
        failed=1
    fi
}
[ -n "$declared" ] || { echo "no ODC_API function was found in odc.h" >&2; exit 1; }
compare "odc.h" "$declared" "odc.map" "$mapped"
compare "odc.map" "$mapped" "libodc.so" "$exported"
if [ -n "$other" ]; then
    echo "libodc.so exports what is no function: $other" >&2
    failed=1
fi
soname=$(objdump -p "$ODC_BUILD_DIR/lib/libodc.so" | awk '$1 == "SONAME" {print $2}')
if [ "$soname" != libodc.so.0 ]; then
    echo "the SONAME is '$soname', not libodc.so.0" >&2
    failed=1
fi
destroyed=$(nm -A "$ODC_BUILD_DIR/lib/libodc.a" 2>/dev/null | sed -n 's/^[^:]*:\([^:]*\):.* U __cxa_\(thread_\)\?atexit$/\1/p')
if [ -n "$destroyed" ]; then
    echo "exit() destroys static or thread_local objects of $destroyed; make them references to what new returns" >&2
    failed=1
fi
if ! readelf -d "$ODC_BUILD_DIR/lib/libodc.so" | grep -q NODELETE; then
    echo "dlclose() can unload libodc.so, although ending threads call it (words_of_thread)" >&2
    failed=1
fi
[ "$failed" -eq 0 ] || exit 1
echo "$(wc -l <<<"$exported") functions, the same in odc.h, odc.map and libodc.so"

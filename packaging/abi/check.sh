#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks that this tree keeps the binary interface: compiles declarations.c, compares the library with odc.abi and with the previous
# release (previous/), and says what to do. docs/abi.md describes how to add to the interface.
#
# usage: packaging/abi/check.sh LIBRARY
#   LIBRARY   a libodc of this tree with debug information, such as build/dev/lib/libodc.so
set -u
# shellcheck source-path=SCRIPTDIR source=../../tests/harness/usage.sh
. "$(dirname "$0")/../../tests/harness/usage.sh"
takes 1 1 "$@"

library=$1
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
broken=0

complain() {
    echo "packaging/abi/check.sh: $*" >&2
    broken=1
}

# unlisted HEADER: in $lines the declarations of that header that declarations.c lacks.
unlisted() {
    python3 "$here/declarations.py" "$1" >"$work/declarations" || complain "the declarations of $1 cannot be listed (above)"
    lines=$(grep -vxFf "$here/declarations.c" "$work/declarations")
}

if ! cc -std=c11 -fsyntax-only -I "$root/include" "$here/declarations.c"; then
    complain "odc.h is no longer what programs were compiled with (above): put it back, and add instead of changing"
fi
unlisted "$here/previous/odc.h"
[ -z "$lines" ] || complain "declarations.c lacks what the previous release had; put these lines back:" $'\n'"$lines"
unlisted "$root/include/odc/odc.h"
[ -z "$lines" ] || complain "odc.h declares what declarations.c does not have; append these lines to it:" $'\n'"$lines"

# previous/ must be the last release before this version in the packages' list of changes.
version() { sed -n 's/^#define ODC_VERSION_[A-Z]* //p' "$1" | paste -sd.; }
now=$(version "$root/include/odc/odc.h")
before=$(version "$here/previous/odc.h")
changes=packaging/debian/changelog
last=$(sed -n 's/^libodc ([0-9]*:\([0-9.]*\)-.*/\1/p' "$root/$changes" | { cat && echo "$now"; } | sort -uV | sed "/^$now\$/q" | tail -n 2 | head -n 1)
if [ "$last" = "$now" ]; then
    grep -q "^libodc ([0-9]*:$now-" "$root/$changes" || complain "$changes names neither $now, which odc.h is of, nor an earlier release"
elif [ "$before" != "$last" ] && [ "$before" != "$now" ]; then
    complain "previous/ is of libodc $before, but $changes says that $last was released before $now: copy odc.h and odc.map of" \
        "$last to previous/, and add what came with it to its libodc.c"
fi

# nodes MAP: each function after its node.
nodes() {
    awk '/{/ { node = $1 }
        { while (match($0, /odc_[a-z0-9_]*;/)) { print node, substr($0, RSTART, RLENGTH - 1); $0 = substr($0, RSTART + RLENGTH) } }' "$1"
}
released=$(nodes "$here/previous/odc.map")
for node in $(awk '{ print $1 }' <<<"$released" | uniq); do
    differs=$(diff <(grep "^$node " <<<"$released") <(nodes "$root/lib/api/odc.map" | grep "^$node ")) ||
        complain "the node $node of lib/api/odc.map was released and must not change (>); add a node:" $'\n'"$differs"
done

if "$here/describe.sh" "$library" >"$work/today.abi"; then
    if ! abidiff --harmless "$here/odc.abi" "$work/today.abi" >"$work/words" 2>&1; then
        cat "$work/words" >&2
        complain "the library is not what odc.abi says (above). If all of it was added: describe.sh $library >$here/odc.abi"
    fi
    cc -std=c11 -g -fPIC -shared -Wl,-soname,libodc.so.0 "-Wl,--version-script=$here/previous/odc.map" \
        "$here/previous/libodc.c" -o "$work/libodc.so.0" &&
        "$here/describe.sh" "$work/libodc.so.0" >"$work/previous.abi" || complain "previous/libodc.c cannot be described"
    # 8: incompatible according to abidiff. The declarations check that fields were only added.
    abidiff "$work/previous.abi" "$work/today.abi" >"$work/words" 2>&1
    if [ $(($? & 11)) -ne 0 ]; then
        cat "$work/words" >&2
        complain "programs of the previous release would not run on the library (above)"
    fi
else
    broken=1
fi
[ "$broken" -eq 0 ] && echo "the binary interface is kept: $(grep -cE '^(VALUE|FIELD|CALLBACK|FUNCTION)\(' "$here/declarations.c") declarations, $(grep -c '<elf-symbol ' "$here/odc.abi") functions"

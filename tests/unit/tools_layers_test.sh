#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Each folder of tools/ includes only files of its own or of a later row of the table in tools/README.md, and modules (a header
# with its source) do not include each other in circles. They may include <odc/odc.h> and cuda/ besides.
set -u
cd "${ODC_SOURCE_DIR:?the folder of the sources}/tools" || exit 1
# shellcheck source=tests/harness/includes.sh
. ../tests/harness/includes.sh

failures=0
complain() {
    echo "$*" >&2
    failures=$((failures + 1))
}

declare -A row
number=0
while read -r folders; do
    number=$((number + 1))
    for folder in $folders; do
        row[$folder]=$number
        [ -d "$folder" ] || complain "tools/README.md names $folder/, which is not in tools/"
    done
done < <(sed -n 's/^| \(`[^|]*`\) |.*/\1/p' README.md | tr -d '`,/')
[ "$number" -ge 2 ] || complain "tools/README.md has no table of folders"

sources() { find . \( -name '*.h' -o -name '*.cc' -o -name '*.cc.in' -o -name '*.inc' \) -printf '%P\n' | sort; }
# Also in angle brackets, if the file is one of this repository.
includes_of() {
    local header
    in_quotes "$1"
    for header in $(in_angles "$1"); do
        case $header in
        odc/odc.h) ;;
        odc/*) echo "$header" ;;
        *) [ ! -f "$header" ] && [ ! -f "../lib/$header" ] || echo "$header" ;;
        esac
    done
}
edges=
while read -r file; do
    folder=$(dirname "$file")
    module=${file%.in}
    module=${module%.*}
    if [ -z "${row[$folder]:-}" ]; then
        complain "tools/$file is in a folder that tools/README.md does not name"
        continue
    fi
    unread=$(other_includes "$file") && complain "tools/$file includes in a way that this test does not read: $unread"
    for included in $(includes_of "$file"); do
        if [[ $included == *../* ]]; then # else a way through cuda/ would lead anywhere
            complain "tools/$file includes $included: write the path from tools/"
            continue
        fi
        [ -f "../cuda/$included" ] && continue
        other=$(dirname "$included")
        if [ ! -f "$included" ]; then
            complain "tools/$file includes $included: not a file of tools/ or cuda/"
        elif [ "$other" != "$folder" ] && [ "${row[$other]:-0}" -le "${row[$folder]}" ]; then
            complain "tools/$file includes $included, whose folder is not in a later row of tools/README.md"
        fi
        [ "${included%.*}" = "$module" ] || edges+="$module ${included%.*}"$'\n'
    done
done < <(sources)
circle=$(tsort <<<"$edges" 2>&1 >/dev/null) || complain "modules of tools/ that include each other: $circle"
[ "$failures" -eq 0 ] || exit 1
echo "$(sources | wc -l) files of $(wc -w <<<"${!row[*]}") folders keep to their rows"

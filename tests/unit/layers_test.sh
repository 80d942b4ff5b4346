#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Each folder of lib/ includes only files of its own or of folders below it, by the table in lib/README.md; modules (a header
# with its source) do not include each other in circles; a folder does not hold too many modules. Tests see the library through
# <odc/odc.h> only, or a few named headers (tools: tools_layers_test.sh). cuda/ is below all of them: it is NVIDIA's interface,
# not the library's.
set -u
cd "${ODC_SOURCE_DIR:?the folder of the sources}" || exit 1
# shellcheck source=tests/harness/includes.sh
. tests/harness/includes.sh

kMostModules=22
kMostHeaders=22 # of lib/

failures=0
complain() {
    echo "$*" >&2
    failures=$((failures + 1))
}

declare -A depth modules
number=0
while read -r folder; do
    depth[$folder]=$number
    number=$((number + 1))
    [ -d "lib/$folder" ] || complain "lib/README.md names the folder $folder, which is not in lib/"
done < <(sed -n 's/^| `\([a-z_/]*\)\/` .*/\1/p' lib/README.md)
[ "$number" -gt 5 ] || complain "lib/README.md has no table of folders"

# Also of lib/ in angle brackets, as it is on the compiler's path.
includes_of() {
    local header
    in_quotes "$1"
    for header in $(in_angles "$1"); do
        [ ! -f "lib/$header" ] || echo "$header"
    done
}
module_of() {
    local name=${1#lib/}
    printf '%s' "${name%%.*}"
}

pairs=$(mktemp)
included_headers=$(mktemp)
trap 'rm -f "$pairs" "$included_headers"' EXIT
# All but documents, scripts and what is made for GPUs: an included file may have any other name.
files=$(find lib -type f | grep -vE '\.(md|txt|map|sh|ptx|cubin|sha256)$' | sort)
for file in $files; do
    folder=$(dirname "${file#lib/}")
    # kernels/ is compiled by another compiler, and belongs to its transport.
    folder=${folder%/kernels}
    if [ -z "${depth[$folder]:-}" ]; then
        complain "$file is in a folder that the table in lib/README.md lacks"
        continue
    fi
    other=$(other_includes "$file") && complain "$file includes in a way that this test does not read: $other"
    modules[$folder]+="$(module_of "$file")"$'\n'
    while read -r included; do
        if [[ $included == *../* ]]; then # else a way through cuda/ would lead anywhere
            complain "$file includes $included: write the path from lib/"
            continue
        fi
        [ -f "cuda/$included" ] && continue
        [ -f "lib/$included" ] || included=$(dirname "${file#lib/}")/$included
        echo "$file lib/$included" >>"$included_headers"
        theirs=$(dirname "$included")
        theirs=${theirs%/kernels}
        if [ ! -f "lib/$included" ]; then
            complain "$file includes $included, which is not in lib/"
        elif [ "${depth[$theirs]:--1}" -lt "${depth[$folder]}" ]; then
            complain "$file includes $included, which stands above it"
        fi
        [ "$(module_of "$file")" = "$(module_of "$included")" ] || echo "$(module_of "$file") $(module_of "$included")"
    done < <(includes_of "$file") >>"$pairs"
done
circle=$(tsort "$pairs" 2>&1 >/dev/null | sed 's/^tsort: //; /input contains a loop/d; s/^-: //')
[ -z "$circle" ] || complain "modules of lib/ include each other in a circle:" $circle
for folder in "${!modules[@]}"; do
    count=$(sort -u <<<"${modules[$folder]}" | grep -c .)
    [ "$count" -le "$kMostModules" ] || complain "lib/$folder holds $count modules; more than $kMostModules want folders of their own"
done

# A header brings few others along: else whoever changes one compiles all, and knows all.
heavy=$(awk -v most="$kMostHeaders" '
    function count(header, found,    i, n, list) {
        n = split(includes[header], list, " ")
        for (i = 1; i <= n; i++) {
            if (!(list[i] in found)) {
                found[list[i]]
                count(list[i], found)
            }
        }
    }
    { includes[$1] = includes[$1] " " $2 }
    END {
        for (header in includes) {
            if (header !~ /\.h$/) {
                continue
            }
            split("", found)
            count(header, found)
            if (length(found) > most) {
                print header " (" length(found) ")"
            }
        }
    }' "$included_headers")
[ -z "$heavy" ] || complain "headers bring along more than $kMostHeaders others: $heavy"

# The contract names neither GPUs nor the fabric, but where these meet it:
meet_them=(
    gpu_operations gpu_sync gpu_memory gpu_call # the engine of GPU memory
    engines                            # which engines there are
    control_channel remote_memory      # all that the contract asks of other hosts
    claims                             # a request that another host answers
    shard                              # where a slice lies in GPU memory
)
# These may speak of them, but not include their transports.
speak_of_them=(
    job             # hands out the control channel, and tells what waits for a GPU
    host_operations # refuses a stream where there is no GPU
    exact_sums      # sums that a GPU has converted
)
named=$(grep -rliE --include='*.*' --exclude='*.md' 'cuda|gpu|fabric' lib/core | sed 's/.*\///; s/\..*//' | sort -u)
differ=$(comm -3 <(echo "$named") <(printf '%s\n' "${meet_them[@]}" "${speak_of_them[@]}" | sort))
[ -z "$differ" ] || complain "these name a GPU or the fabric but may not, or (indented) no longer do, in lib/core:" "$differ"
includes=$(cd lib/core && grep -lE '^# *include "transport/(cuda|fabric)/' "${speak_of_them[@]/%/.cc}" "${speak_of_them[@]/%/.h}")
[ -z "$includes" ] || complain "these may speak of GPUs and hosts, but not include their transports:" $includes

grep -n '^ *# *include "' cuda/*.h && complain "cuda/ includes what stands above it"
grep -rnE '^ *# *include *<odc/' lib cuda | grep -v '<odc/odc\.h>' &&
    complain "lib/ and cuda/ include no public header but odc.h: the others stand above it"

# The headers of lib/ that the sources of a folder of tests/ include, by design. unit/, fuzz/ and data/ see the inside.
declare -A of_lib=(
    [contract]='' [faults]='' [cli]='' [harness]='' [packaging]=''
    # What is compared with NVML's own header:
    [gpu]='topology/nvml_library.h'
    # What its benchmarks measure by itself:
    [perf]='base/element_type.h base/log.h memory/host_kernels.h memory/slice_layout.h transport/fabric/control_message.h'
    # What a replaced library shares with its caller: the kernels, which run on the host instead, and NVML's interface.
    [fakes]='topology/nvml_library.h transport/cuda/kernels/add.h transport/cuda/kernels/exact.h'
    # The kernels, run by themselves.
    [hardware]='transport/cuda/kernels/add.h'
)
# Of fakes/ these are unit tests of the driver, and what they share.
unit_tests=' tests/fakes/cuda_test.cc tests/fakes/cuda_process_test.cc tests/fakes/cuda/checks.h '

# The included file as a path from the root; nothing if it is not in this repository. $2: as it is written in the file $1.
included_file() {
    local folder
    for folder in "$(dirname "$1")" lib cuda include tests tests/harness; do
        if [ -f "$folder/$2" ]; then
            realpath --relative-to=. "$folder/$2"
            return
        fi
    done
}
found=
outside=0
while read -r file; do
    folder=${file#tests/}
    folder=${folder%%/*}
    case $folder in unit | fuzz | data) continue ;; esac
    [[ $unit_tests != *" $file "* ]] || continue
    outside=$((outside + 1))
    [ -n "${of_lib[$folder]+known}" ] || complain "$file is in a folder of which $0 does not say what it may include"
    for written in $(in_quotes "$file") $(in_angles "$file"); do
        included=$(included_file "$file" "$written")
        case $included in
        tests/* | cuda/* | include/* | '') ;;
        lib/*)
            found+=" $folder:${included#lib/} "
            [[ " ${of_lib[$folder]-} " == *" ${included#lib/} "* ]] ||
                complain "$file includes $written: besides <odc/odc.h> it may see of lib/ ${of_lib[$folder]:-nothing}"
            ;;
        *) complain "$file includes $written, which is neither the tests' nor the library's" ;;
        esac
    done
done < <(find tests -name '*.[ch]' -o -name '*.cc' -o -name '*.cu' | sort)
for folder in "${!of_lib[@]}"; do
    for header in ${of_lib[$folder]}; do
        [[ $found == *" $folder:$header "* ]] || complain "nothing in tests/$folder includes $header any more: take it off the list"
    done
done

[ "$failures" -eq 0 ] || exit 1
echo "$(wc -w <<<"$files") files keep to their layers, and $outside of tests/ outside of them"

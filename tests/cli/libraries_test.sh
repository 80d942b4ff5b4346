#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The errors for libraries that are opened on demand and cannot be used.
set -u

odc=${ODC:?the path of the odc command}
join=${ODC_BUILD_DIR:?the folder of the build}/tests/cli/join
# shellcheck source-path=SCRIPTDIR source=../harness/shell_checks.sh
. "${ODC_SOURCE_DIR:?the folder of the sources}/tests/harness/shell_checks.sh"
unset ODC_TRANSPORTS ODC_PROVIDER FI_PROVIDER ODC_TOPOLOGY_XML ODC_RENDEZVOUS ODC_DEVICE
export HWLOC_SYNTHETIC="pack:1 node:1 pu:4"
command -v "${CC:=cc}" >/dev/null || { echo "$CC was not found"; exit 77; }

# says LIBRARY TEXT: the error for it with the one in $work/libraries.
says() {
    local library=$1 words=$2 said
    local set=(env "LD_LIBRARY_PATH=$work/libraries")
    case $library in
    libcuda.so.1 | libfabric.so.1)
        expect 0 "${set[@]}" "$odc" info
        said=$(sed -n "s/^  \(cuda\|fabric\)  *unavailable: \($library.*\)/\2/p" <<<"$out")
        ;;
    libnvidia-ml.so.1)
        expect 0 "${set[@]}" "$odc" topo --save "$work/saved.xml"
        said=$(sed -n 's/.*name="odc.nvml" value="NVML unavailable: \(.*\)".*/\1/p' "$work/saved.xml")
        ;;
    libpmix.so.2)
        expect 1 "${set[@]}" PMIX_NAMESPACE=job OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 \
            OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1 "$join"
        said=${err##*PMIx: }
        [ "$said" != "this libodc was built without PMIx" ] || said=$words
        ;;
    esac
    same "$said" "$words"
}

# All of them, from the one table, and where packages and the manual name them.
cd "$ODC_SOURCE_DIR" || exit 1
libraries=$(sed -n '/^namespace libraries/,/^}/s/.* = "\(lib[^"]*\)";.*/\1/p' lib/base/dynamic_library.h)
same "$(wc -w <<<"$libraries")" 4
for library in $libraries; do
    for file in packaging/rpm/libodc.spec packaging/README.md; do
        contains "$(cat $file)" "$library"
    done
    contains "$(sed "s/\\\\-/-/g" tools/man/odc.1)" "$library"
done

mkdir "$work/libraries"
for library in $libraries; do
    ldconfig -p | grep -qF "$library " || says "$library" "$library not found"

    : >"$work/libraries/$library"
    says "$library" "$library cannot be loaded: $work/libraries/$library: file too short"

    # An existing one that needs a missing one.
    "$CC" -shared -fPIC -x c - -o "$work/libthat_is_gone.so" <<<"int gone;"
    "$CC" -shared -fPIC -x c - -L "$work" -lthat_is_gone -o "$work/libraries/$library" \
        <<<"extern int gone; int *needs = &gone;"
    rm "$work/libthat_is_gone.so"
    says "$library" \
        "$library cannot be loaded: libthat_is_gone.so: cannot open shared object file: No such file or directory"

    # Another library of the same name.
    "$CC" -shared -fPIC -x c - -o "$work/libraries/$library" <<<"int nothing;"
    case $library in
    libcuda.so.1) says "$library" "$library is older than CUDA 12.1" ;;
    libnvidia-ml.so.1) says "$library" "$library lacks nvmlInit_v2; that of a driver of CUDA 12.1 or later has it" ;;
    libfabric.so.1) says "$library" "$library lacks fi_getinfo of FABRIC_1.3" ;;
    libpmix.so.2) says "$library" "$library lacks PMIx_Init" ;;
    esac
    rm "$work/libraries/$library"
done

[ "$failures" -eq 0 ]

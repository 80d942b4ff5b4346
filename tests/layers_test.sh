#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Each layer of lib/ includes only what stands in it or below it (lib/README.md), and tools and tests see the library
# through <odc/odc.h> only. cuda/ is below all of them: NVIDIA's interface, not the library's.
set -u
cd "${ODC_SOURCE_DIR:?the folder of the sources}" || exit 1

# From the top: one layer a line, its files without their endings.
layers="
c_api
context context_operations context_sync context_gpu posts shard slices plan partition
job host_tree
bootstrap reach gpu_trial gpu_direct nvlink porch rendezvous meeting leader farewell meeting_socket parcel card exchange exchange_callback exchange_pmix exchange_tcp handshake reception tcp launcher route machine_json wishes port
transport/fabric transport/cuda transport/fetches transport/porter transport/slots transport/gpu_sums transport/loans transport/library_thread transport/gathers transport/additions transport/pulses transport/mates transport/packets transport/reads transport/staging transport/remote transport/probe transport/mirror transport/fabric_endpoint transport/libfabric transport/notice transport/shm transport/stripes transport/transport
arena free_ranges program rank_block post memory memory_lock loop_choice kernels kernels/add adder futex nvml gpus gpu_link cuda_driver cuda_device cuda_memory quiet_thread pins flights inbox topology recording recording_check machine interfaces nic
status settings patience element fd fd_passing shared_library
"

declare -A depth
number=0
while read -r line; do
    for file in $line; do
        depth[$file]=$number
    done
    number=$((number + 1))
done <<<"$layers"

failures=0
complain() {
    echo "$*" >&2
    failures=$((failures + 1))
}

files=$(cd lib && ls ./*.h ./*.cc transport/*.h transport/*.cc kernels/*.h kernels/*.cu | sed 's|^\./||')
for file in $files; do
    noun=${file%.*}
    mine=${depth[$noun]:-}
    if [ -z "$mine" ]; then
        complain "lib/$file is in no layer: add it to $0"
        continue
    fi
    for included in $(sed -n 's/^ *# *include "\([^"]*\)".*/\1/p' "lib/$file"); do
        [ -f "cuda/$included" ] && continue
        [ -f "lib/$included" ] || included=$(dirname "$file")/$included
        theirs=${depth[${included%.*}]:-}
        if [ -z "$theirs" ]; then
            complain "lib/$file includes $included, which is in no layer"
        elif [ "$theirs" -lt "$mine" ]; then
            complain "lib/$file includes $included, which stands above it"
        fi
    done
done
for noun in "${!depth[@]}"; do
    compgen -G "lib/$noun.*" >/dev/null || complain "the layers name $noun, which is not in lib/"
done

grep -n '^ *# *include "' cuda/*.h && complain "cuda/ includes what stands above it"

# Tests named *_unit_test.cc exist to see the inside.
outside=$(ls tools/*.cc tools/*.h tests/*.c tests/*.h)
for file in $outside; do
    for included in $(sed -n 's/^ *# *include "\([^"]*\)".*/\1/p' "$file"); do
        [ -f "$(dirname "$file")/$included" ] || [ -f "cuda/$included" ] ||
            complain "$file includes $included: it may see <odc/odc.h> only"
    done
done

[ "$failures" -eq 0 ] || exit 1
echo "$(wc -w <<<"$files") files keep to their layers"

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# odc bench: it measures, checks its bytes and sums, and reports what it measured. Tiny sizes and no bars: the speed of this
# machine is not tested.
set -euo pipefail

odc=${ODC:?names the odc command}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# check_json FILE EXPRESSION: the expression is true of FILE's JSON object `j`.
check_json() {
    python3 - "$@" <<'PYTHON'
import json, sys
j = json.load(open(sys.argv[1]))
if not eval(sys.argv[2]):
    sys.exit(f"not so: {sys.argv[2]}\nin {j}")
PYTHON
}

# refuses TEXT ARGUMENT...: odc bench fails with an error that contains TEXT.
refuses() {
    local text=$1
    shift
    if "$odc" bench "$@" >"$scratch/out" 2>&1; then
        echo "odc bench $* should have failed" >&2
        exit 1
    fi
    if ! grep -q -- "$text" "$scratch/out"; then
        echo "odc bench $* did not say \"$text\":" >&2
        cat "$scratch/out" >&2
        exit 1
    fi
}

race='min(j["gbps"], j["limit_gbps"], j["limit_self_ratio"]) > 0'
race+=' and 0 < j["ratio_low"] <= j["ratio"] <= j["ratio_high"] and j["limit"]'
# 65,544 bytes: the slices are unequal, and not multiples of a vector.
for operation in gather scatter-add; do
    for type in f32 bf16 f16 f64; do
        "$odc" bench $operation --ranks 3 --bytes 65544 --type $type --pairs 3 --json >"$scratch/json"
        check_json "$scratch/json" "$race"
        check_json "$scratch/json" "(j['op'], j['ranks'], j['bytes'], j['type']) == ('$operation', 3, 65544, '$type')"
    done
done
# More ranks than elements: empty slices.
"$odc" bench scatter-add --ranks 3 --bytes 8 --pairs 1 --json >"$scratch/json"
check_json "$scratch/json" "$race"

"$odc" bench sync --ranks 2 --pairs 21 --json >"$scratch/json"
check_json "$scratch/json" 'j["op"] == "sync" and j["ranks"] == 2 and 0 < j["usec_low"] <= j["usec"] <= j["usec_high"]'

# Inside a job it joins: one object from rank 0.
"$odc" run -n 2 -- "$odc" bench gather --bytes 64KiB --pairs 2 --json >"$scratch/out"
sed 's/^[^{]*//' "$scratch/out" >"$scratch/json"
check_json "$scratch/json" 'j["ranks"] == 2 and j["bytes"] == 65536'
check_json "$scratch/json" '[(r["transport"], r["ranks"]) for r in j["routes"]] == [("shm", [1])]'

# Between hosts: on one machine each rank is a host; in a job of two hosts, one of which has two ranks; never by shm.
if "$odc" info | grep -q "fabric *ready"; then
    for operation in gather scatter-add; do
        for type in f32 bf16; do
            "$odc" bench $operation --transport fabric --ranks 3 --bytes 65544 --type $type --pairs 3 --json \
                >"$scratch/json"
            check_json "$scratch/json" '0 < j["gbps_low"] <= j["gbps"] <= j["gbps_high"] and "ratio" not in j'
            check_json "$scratch/json" '[r["transport"] for r in j["routes"]] == ["fabric"] and j["routes"][0]["ranks"] == [1, 2] and j["hosts"]'
            check_json "$scratch/json" '0.6 < j["network_share"] < 0.7'
        done
    done
    "$odc" bench sync --transport fabric --pairs 21 >"$scratch/out"
    grep -q "^rank 0 to rank 1: fabric: " "$scratch/out"
    grep -q "no bare loop" "$scratch/out"
    export ODC_INTERFACE=lo
    apart=(--hosts a,b --via "env ODC_HOST_ID={host}" --address 127.0.0.1)
    "$odc" run -n 3 "${apart[@]}" -- "$odc" bench gather --bytes 64KiB --pairs 2 --json >"$scratch/out"
    sed 's/^[^{]*//' "$scratch/out" >"$scratch/json"
    check_json "$scratch/json" 'all(r["transport"] == "fabric" for r in j["routes"]) and "hosts" not in j'
    check_json "$scratch/json" 'sorted(sum((r["ranks"] for r in j["routes"]), [])) == [1, 2]'
    status=0
    "$odc" run -n 2 "${apart[@]}" -- "$odc" bench gather --transport shm >"$scratch/out" 2>&1 || status=$?
    test "$status" = 2
    grep -q "but the job's ranks are on several hosts; leave it out there" "$scratch/out"
    unset ODC_INTERFACE
else
    echo "between hosts: skipped, $("$odc" info | grep fabric)"
fi

# Without a launcher there is no job: a Slurm batch script, a stray or an empty variable.
for stray in SLURM_PROCID=0 RANK=0 PMI_RANK=0 ODC_RANK= OMPI_COMM_WORLD_RANK=; do
    env SLURM_JOB_ID=1 SLURM_NTASKS=1 $stray "$odc" bench gather --bytes 64KiB --pairs 1 --json >"$scratch/json"
    check_json "$scratch/json" 'j["ranks"] == 2'
done
env RANK=0 WORLD_SIZE=1 "$odc" bench gather --bytes 64KiB --pairs 1 --json >"$scratch/json"
check_json "$scratch/json" 'j["ranks"] == 1'

"$odc" bench gather --bytes 64KiB --pairs 2 >"$scratch/out"
grep -q "ratio" "$scratch/out"
grep -q "GB/s per rank" "$scratch/out"

refuses "multiple of 4" gather --bytes 6
refuses "operation" broadcast
refuses "--ranks" gather --ranks 0
for wrong in -1 0 1.5MiB 64XB 4i MiB 99999999999999999999 16EiB 32EiB; do
    refuses "^odc: --bytes: \"$wrong\" is not a whole number of bytes.* from 1 to 1125899906842624$" gather --bytes "$wrong"
done
for size in 4096 4096b 4ki 4KiB; do
    "$odc" bench gather --bytes $size --pairs 1 --json >"$scratch/json"
    check_json "$scratch/json" 'j["bytes"] == 4096'
done
"$odc" bench gather --bytes 4kB --pairs 1 --json >"$scratch/json"
check_json "$scratch/json" 'j["bytes"] == 4000'
refuses '"x" is not a whole number from 1 to 1000000' gather --pairs x
refuses "type" gather --type int8
refuses "transport" gather --transport tcp
: >"$scratch/libfabric.so.1"
LD_LIBRARY_PATH=$scratch refuses "^odc: --transport fabric: libfabric.so.1 cannot be loaded: .*file too short$" gather --transport fabric
refuses "fewer --bytes" gather --bytes 1000TB
"$odc" bench --help >"$scratch/out"
grep -q "median" "$scratch/out"

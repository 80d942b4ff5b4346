#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# odc bench --memory cuda with the CUDA driver and the NCCL for tests: it measures, checks the bytes and sums of both sides, and
# reports what it measured. Tiny sizes and no bars.
set -u
: "${ODC_SOURCE_DIR:?the folder of the sources}" "${ODC_BUILD_DIR:?the folder of the build}" "${ODC:?the odc command}"
. "$ODC_SOURCE_DIR/tests/harness/shell_checks.sh"
unset ODC_DEVICE ODC_NCCL CUDA_VISIBLE_DEVICES
drivers=$ODC_BUILD_DIR/tests/fakes/cuda
nccl=$ODC_BUILD_DIR/tests/fakes/nccl
export FAKE_CUDA_DELAY_US=20
sample_ms=2

# bench ARGUMENT...: runs it on the GPUs for tests.
bench() {
    expect 0 env LD_LIBRARY_PATH="$drivers" "$ODC" bench "$@" --memory cuda
}
# measures GPUS ARGUMENT...: the same with JSON output in $out.
measures() {
    export FAKE_CUDA_DEVICES=$1
    shift
    bench "$@" --sample-ms "$sample_ms" --json
}
# refuses STATUS TEXT ARGUMENT...: it exits with STATUS and an error that contains TEXT.
refuses() {
    local status=$1 text=$2
    shift 2
    expect "$status" env LD_LIBRARY_PATH="$drivers" "$ODC" bench "$@" --memory cuda
    contains "$err" "$text"
    # Reported once: the other lines are about the ranks that ended.
    [ "$(grep -vc 'exited with status' <<<"$err")" -eq 1 ] || fail "odc bench $* reported the reason more than once: $err"
}
# json EXPRESSION: it is true of the JSON object `j`.
json() {
    python3 -c 'import json, sys
j = json.loads(sys.argv[1])
ordered = lambda name: 0 < j[name + "_low"] <= j[name] <= j[name + "_high"]
sys.exit(0 if eval(sys.argv[2]) else f"not so: {sys.argv[2]}")' "$out" "$1" || fail "in $out"
}

race='min(j["gbps"], j["limit_gbps"], j["sample_ms"], j["repeats"]) > 0 and j["memory"] == "cuda" and all(ordered(name) for name in ("ratio", "limit_self_ratio", "host_usec"))'
# 65,544 bytes: the slices are unequal, and not multiples of a vector. Ranks 0 and 2 share a GPU.
for type in f32 f64 bf16 f16; do
    measures 2 gather --ranks 3 --bytes 65544 --type $type --pairs 3
    json "$race"
    json "(j['op'], j['ranks'], j['bytes'], j['type'], j['pairs'], j['active']) == ('gather', 3, 65544, '$type', 3, 'all')"
    json '[(g["device"], g["name"], g["ranks"]) for g in j["gpus"]] == [("cuda:0", "Fake GPU 0", [0, 2]), ("cuda:1", "Fake GPU 1", [1])]'
    json '[(r["transport"], r["ranks"]) for r in j["routes"]] == [("cuda", [1]), ("cuda", [2])]'
    json 'j["limit"] == "cuMemcpyAsync of 3 pieces, 1 from other GPUs" and j["host_calls"] == 24'
    measures 2 scatter-add --ranks 3 --bytes 65544 --type $type --pairs 3
    json "$race"
    json 'all(ordered(name + "_ratio") and j[name + "_gbps"] > 0 and j[name + "_verdict"] for name in ("plain", "owner"))'
    json '"not resolved: " in j["verdict"] and "others_cpu_share" in j and "bar" not in j'
    json '"on the owners'\'' GPUs" in j["owner"] and "nccl_ratio" not in j'
done

# Exact sums, beside the default ones.
for type in f32 bf16 f16; do
    measures 2 scatter-add --sum exact --ranks 3 --bytes 65544 --type $type --pairs 3
    json "$race and j['sum'] == 'exact' and j['repeats'] < 4096 // 3"
    json 'all(ordered(name + "_ratio") and j[name + "_gbps"] > 0 for name in ("plain", "owner", "default"))'
done
measures 2 scatter-add --sum exact --ranks 3 --bytes 64KiB --active one --pairs 1
json "$race and ordered('default_ratio')"

# One active rank, all on one GPU: the limit is one copy.
measures 1 gather --ranks 3 --bytes 64KiB --active one --pairs 2
json "$race and j['active'] == 'one' and j['limit'] == 'cuMemcpyAsync from device to device'"
json '[g["ranks"] for g in j["gpus"]] == [[0, 1, 2]]'
measures 1 scatter-add --ranks 2 --bytes 64KiB --type bf16 --active one --pairs 2
json "$race and 'on the same GPU' in j['owner'] and ordered('owner_ratio')"
# A rank alone, and more ranks than elements.
measures 1 scatter-add --ranks 1 --bytes 4096 --pairs 1
json "$race and j['routes'] == []"
measures 2 scatter-add --ranks 3 --bytes 8 --pairs 1
json "$race"
measures 2 gather --ranks 3 --bytes 8 --pairs 1
json "$race"

# Timings end with the stream: here a call's GPU work takes milliseconds, the call itself microseconds.
export FAKE_CUDA_DELAY_US=4000
sample_ms=20
measures 1 gather --ranks 1 --bytes 4096 --pairs 1
json "max(j['gbps'], j['limit_gbps']) < 0.1"
measures 1 scatter-add --ranks 1 --bytes 4096 --pairs 1
json "max(j['gbps'], j['limit_gbps'], j['plain_gbps'], j['owner_gbps']) < 0.1"
export FAKE_CUDA_DELAY_US=20
sample_ms=2

# GPUs without peer access.
export FAKE_CUDA_P2P=none
measures 2 gather --bytes 64KiB --pairs 1
json "$race and j['limit'] == 'cuMemcpyAsync of 2 pieces, 1 from pinned host memory' and 'staged' in j['routes'][0]['reason']"
measures 2 scatter-add --bytes 64KiB --pairs 1
json "$race and 'owner_ratio' not in j and j['owner_why_not'] == 'as cuda:0 cannot use the memory of rank 1'\"'\"'s GPU'"
unset FAKE_CUDA_P2P

measures 2 sync --pairs 21
json 'j["op"] == "sync" and j["memory"] == "cuda" and ordered("usec") and j["limit_usec"] > 0 and len(j["gpus"]) == 2 and "active" not in j'

# Inside a job it joins, on the GPU that the job gave it.
expect 0 env LD_LIBRARY_PATH="$drivers" ODC_DEVICE=cuda:1 "$ODC" run -n 2 -- "$ODC" bench gather --memory cuda --bytes 64KiB \
    --pairs 1 --sample-ms 2 --json
out=${out#*] }
json "$race and [(g['device'], g['ranks']) for g in j['gpus']] == [('cuda:1', [0, 1])]"

# The text output.
bench scatter-add --sum exact --bytes 64KiB --pairs 2 --sample-ms 2
contains "$out" "64 KiB f32, exact sums, 2 ranks"
contains "$out" "default sums"
for pairs in 2 6; do
    bench scatter-add --bytes 64KiB --pairs $pairs --active one --sample-ms 2
    for text in "2 ranks of which rank 0 is active, $pairs pairs of " "rank 1 on cuda:1 (Fake GPU 1)" "rank 0 to rank 1: cuda: " \
        "verdict: " "  against itself " "plain a += b" "the owner adds" "host time of a call"; do
        contains "$out" "$text"
    done
    # Ratios only beside a verdict, for which two pairs are too few.
    reached="of the plain a += b of the owner's additions"
    [[ $pairs -ge 6 && $out != *"verdict: not resolved: "* ]] || reached=
    same "$(sed -n 's/^  libodc reached [0-9.]* ([0-9.]* to [0-9.]*) //p' <<<"$out" | xargs -d '\n')" "$reached"
done

# NCCL for comparison, where each rank has its own GPU.
drivers=$drivers:$nccl
measures 3 scatter-add --sum exact --ranks 3 --bytes 65544 --pairs 2 --peer nccl
json "$race and ordered('nccl_ratio') and ordered('default_ratio')"
for what in "gather f32" "scatter-add f32" "scatter-add f64" "scatter-add bf16" "scatter-add f16"; do
    measures 3 "${what% *}" --ranks 3 --bytes 65544 --type "${what#* }" --pairs 2 --peer nccl
    json "$race and ordered('nccl_ratio') and j['nccl_gbps'] > 0 and j['nccl_version'] == '2.28.3'"
done
export FAKE_CUDA_DEVICES=2 FAKE_NCCL_WRONG=1
expect 1 env LD_LIBRARY_PATH="$drivers" "$ODC" bench gather --memory cuda --bytes 64KiB --pairs 1 --sample-ms 2 --peer nccl
contains "$err" "the bytes of NCCL's all-gather on cuda:"
expect 1 env LD_LIBRARY_PATH="$drivers" "$ODC" bench scatter-add --memory cuda --bytes 64KiB --pairs 1 --sample-ms 2 --peer nccl
contains "$err" "the sums of NCCL's reduce-scatter on cuda:"
unset FAKE_NCCL_WRONG
refuses 2 "NCCL refuses two ranks on one GPU, and ranks 0 and 2 are on cuda:0 (Fake GPU 0); give each a GPU of its own" \
    gather --ranks 3 --peer nccl
drivers=${drivers%:"$nccl"}
refuses 1 "--peer nccl: libnccl.so.2: cannot open shared object file: No such file or directory; NCCL is optional: install libnccl2" \
    gather --peer nccl
expect 0 env LD_LIBRARY_PATH="$drivers" ODC_NCCL="$nccl/libnccl.so.2" "$ODC" bench gather --memory cuda --bytes 4096 \
    --pairs 1 --sample-ms 2 --peer nccl
: >"$work/empty.so"
ODC_NCCL=$work/empty.so refuses 1 "empty.so: file too short" gather --peer nccl
ODC_NCCL=$(readlink -f "$drivers/libcuda.so.1") refuses 1 "the library lacks ncclGetVersion" gather --peer nccl

# Wrong bytes and sums are found, whichever side moved them.
export FAKE_CUDA_P2P=blind
expect 1 env LD_LIBRARY_PATH="$drivers" "$ODC" bench gather --memory cuda --bytes 64KiB --pairs 1 --sample-ms 2
contains "$err" "the bytes of the plain copy on cuda:"
unset FAKE_CUDA_P2P
for call in "gather cuMemcpyAsync" "scatter-add cuLaunchKernel" "sync cuMemcpyAsync" "gather cuStreamCreate" \
    "gather cuMemCreate"; do
    FAKE_CUDA_FAIL=${call#* }:0:719 \
        expect 1 env LD_LIBRARY_PATH="$drivers" "$ODC" bench "${call% *}" --memory cuda --bytes 4096 --pairs 1 --sample-ms 2
    contains "$err" "CUDA_ERROR_LAUNCH_FAILED"
done

# Impossible requests.
FAKE_CUDA_MEMORY=33554432 refuses 1 \
    "needs 83886080 bytes of cuda:0 (Fake GPU 0), but only 33554432 are free; give fewer --bytes or --ranks" gather --bytes 32MiB
FAKE_CUDA_DEVICES=0 refuses 1 "--memory cuda: " gather
ODC_DEVICE=cuda:7 expect 1 env LD_LIBRARY_PATH="$drivers" "$ODC" bench gather --memory cuda
contains "$err" "cuda:7 does not exist: this process sees 2 GPUs"
refuses 2 "--active one and --peer nccl exclude each other" gather --active one --peer nccl
refuses 2 "a sync is of all ranks" sync --active one
refuses 2 "--transport is for --memory host" gather --transport shm
refuses 2 "--sum exact is for scatter-add of f32, bf16 and f16" sync --sum exact
refuses 2 "is not a multiple of 8" gather --bytes 12 --type f64
expect 2 "$ODC" bench gather --active one
contains "$err" "--active is for --memory cuda"
expect 2 "$ODC" bench gather --peer nccl
contains "$err" "--peer is for --memory cuda"
expect 2 "$ODC" bench gather --memory gpu
contains "$err" "memory"
if ! "$ODC" info | grep -q "cuda *ready"; then
    expect 1 "$ODC" bench gather --memory cuda
    same "$err" "odc: --memory cuda: $("$ODC" info | sed -n 's/^ *cuda *unavailable: //p')"
fi
apart=(--hosts "a,b" --via "env ODC_HOST_ID={host}" --address 127.0.0.1)
if "$ODC" info | grep -q "fabric *ready"; then
    expect 2 env LD_LIBRARY_PATH="$drivers" ODC_INTERFACE=lo "$ODC" run -n 2 "${apart[@]}" -- "$ODC" bench gather --memory cuda
    contains "$err" "--memory cuda measures the GPUs of one host, but the job's ranks are on several"
fi

[ "$failures" -eq 0 ]

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# odc topo with GPUs, by the NVML and the CUDA driver for tests: links between them, routes of GPU memory in a job, and
# ODC_REQUIRE=nvlink.
set -u

odc=${ODC:?the path of the odc command}
fakes=${ODC_BUILD_DIR:?the folder of the build}/tests/fakes
recorded=${ODC_SOURCE_DIR:?the folder of the sources}/tests/data/topology
unset ODC_TRANSPORTS ODC_INTERFACE ODC_PROVIDER ODC_REQUIRE ODC_TOPOLOGY_XML ODC_DEVICE CUDA_VISIBLE_DEVICES
# shellcheck source-path=SCRIPTDIR source=../harness/shell_checks.sh
. "$ODC_SOURCE_DIR/tests/harness/shell_checks.sh"
export HWLOC_SYNTHETIC="pack:1 node:1 pu:4" # hides this machine's GPUs: only the fake ones count
has_nvml() { ldconfig -p | grep -q libnvidia-ml.so.1; }

# python CODE: runs it with the last command's JSON as `machine`.
python() {
    python3 -c "import json; machine = json.load(open('$work/out')); $1" || fail "the JSON is wrong: $1"
}

# section TITLE: the lines under it in $out.
section() { awk -v title="$1" '$0 == title { inside = 1; next } !NF { inside = 0 } inside' "$work/out"; }


# ---- a machine ----
export FAKE_CUDA_DEVICES=4 FAKE_NVML_LINKS=0-1:4,2-switch:18,3-switch:18
with_nvml=(env "LD_LIBRARY_PATH=$fakes/nvml")
expect 0 "${with_nvml[@]}" "$odc" topo
same "$(section "between GPUs of this host:")" "  gpu0 to gpu1  cuda: NVLink (4 links), P2P with native atomics
  gpu0 to gpu2, gpu3  cuda: no NVLink, P2P with native atomics
  gpu1 to gpu2, gpu3  cuda: no NVLink, P2P with native atomics
  gpu2 to gpu3  cuda: NVSwitch (18 links), P2P with native atomics"
contains "$out" "gpu0  NVIDIA Fake GPU 0, 0000:10:00.0; NVLink to 1 GPU, P2P to 3, native atomics to 3"
contains "$out" "gpu3  NVIDIA Fake GPU 3, 0000:13:00.0; NVSwitch to 1 GPU, P2P to 3, native atomics to 3"
expect 0 "${with_nvml[@]}" FAKE_CUDA_P2P=no-atomics FAKE_CUDA_DEVICES=2 "$odc" topo --why
contains "$(section "between GPUs of this host:")" \
    "  gpu0 to gpu1  shm, staged: NVLink (4 links), P2P without native atomics; PCIe: "
contains "$out" "; through host memory, as they have no native atomics between them, so sums would be lost; not cuda: "
expect 0 "${with_nvml[@]}" FAKE_CUDA_P2P=none ODC_TRANSPORTS=cuda "$odc" topo
same "$(section "between GPUs of this host:")" "  each to each other  none: no NVLink, no P2P"

# --save records the same machine; reading it needs no NVML.
expect 0 "${with_nvml[@]}" "ODC_PROVIDER=tcp;ofi_rxm" "$odc" topo --json --save "$work/saved.xml" --svg "$work/picture.svg"
python "
links = {tuple(link['between']): link for link in machine['gpu_links']}
assert len(links) == 6 and machine['why_no_gpu_links'] is None, machine
facts = [[link[key] for key in ('nvlink', 'nvlinks', 'p2p', 'atomics', 'transport', 'access')] for link in
    (links['gpu0', 'gpu1'], links['gpu1', 'gpu2'], links['gpu2', 'gpu3'])]
assert facts == [['NVLink', 4, True, True, 'cuda', 'direct'], ['no', 0, True, True, 'cuda', 'direct'],
    ['NVSwitch', 18, True, True, 'cuda', 'direct']], facts
assert machine['gpus'][2]['uuid'] == 'GPU-6f646320-6661-6b65-2064-657669636502', machine['gpus']"
mv "$work/out" "$work/live"
expect 0 env "ODC_PROVIDER=tcp;ofi_rxm" "$odc" topo --json --xml "$work/saved.xml"
cmp -s "$work/out" "$work/live" || fail "what --save recorded is another machine: $(diff "$work/live" "$work/out")"
grep -q "NVSwitch to 1 GPU" "$work/picture.svg" || fail "the picture does not show links"

# GPUs that hwloc finds, too, are the same ones.
sed -e '/<object type="Misc"/,/<\/object>/d' -e '/name="odc\.\(uuid\|nvlink\|p2p\|atomics\)"/d' \
    -e 's/0000:01:00.0/0000:10:00.0/; s/0000:41:00.0/0000:11:00.0/; s/0000:81:00.0/0000:12:00.0/; s/0000:c1:00.0/0000:13:00.0/' \
    "$recorded/pcie-4gpu.xml" >"$work/box.xml"
expect 0 env -u HWLOC_SYNTHETIC "${with_nvml[@]}" HWLOC_XMLFILE="$work/box.xml" "$odc" topo
contains "$out" ", 4 GPUs, "
contains "$out" "gpu0       NVIDIA GA102GL [RTX A6000], 0000:10:00.0; NVLink to 1 GPU, P2P to 3, native atomics to 3"
contains "$out" "gpu3       NVIDIA GA102GL [RTX A6000], 0000:13:00.0; NVSwitch to 1 GPU, P2P to 3, native atomics to 3"

# Without NVML, and with one that fails, is old, or reports nothing: unknown facts are not guessed.
expect 0 "${with_nvml[@]}" FAKE_NVML_FAIL=nvmlDeviceGetP2PStatus:999 "$odc" topo
same "$(section "between GPUs of this host:")" "  NVML reports nothing about these GPUs
  each to each other  unknown: NVLink unknown, P2P unknown"
# says TEXT SETTING...: the recording, and the output for GPUs that hwloc finds, where NVML cannot be used.
says() {
    local words=$1
    shift
    expect 0 env "$@" "$odc" topo --save "$work/saved.xml"
    contains "$out" ", 0 GPUs, "
    contains "$(grep 'name="odc.nvml"' "$work/saved.xml")" "value=\"NVML unavailable: $words\""
    sed -e '/<distances2hetero/,/<\/distances2hetero/d' \
        -e "s|^  <info name=\"OSName\"|  $(grep -o '<info name="odc.nvml".*/>' "$work/saved.xml")\n&|" \
        "$recorded/efa-cloud.xml" >"$work/cloud.xml"
    expect 0 "$odc" topo --xml "$work/cloud.xml"
    same "$(section "between GPUs of this host:")" "  NVML unavailable: $words
  each to each other  unknown: NVLink unknown, P2P unknown"
    expect 0 env ODC_REQUIRE=nvlink "$odc" topo --xml "$work/cloud.xml"
    contains "$out" "), but nothing is known of NVLink between its GPUs: NVML unavailable: $words"
}
has_nvml || says "libnvidia-ml.so.1 not found" LD_LIBRARY_PATH=
says "nvmlInit failed: Driver Not Loaded" "LD_LIBRARY_PATH=$fakes/nvml" FAKE_NVML_FAIL=nvmlInit_v2:9
says "libnvidia-ml.so.1 lacks nvmlDeviceGetNvLinkRemoteDeviceType; that of a driver of CUDA 12.1 or later has it" \
    "LD_LIBRARY_PATH=$fakes/nvml/old"
: >"$work/libnvidia-ml.so.1"
says "libnvidia-ml.so.1 cannot be loaded: $work/libnvidia-ml.so.1: file too short" "LD_LIBRARY_PATH=$work"
rm "$work/libnvidia-ml.so.1"

expect 0 env ODC_REQUIRE=nvlink "$odc" topo --xml "$recorded/dgx-h100.xml"
same "$(section "between ranks of this host:")" "  shm: the same host
  ODC_REQUIRE is met"
expect 0 env ODC_REQUIRE=shm,nvlink "$odc" topo --xml "$recorded/pcie-4gpu.xml"
same "$(section "between ranks of this host:")" "  shm: the same host
  ODC_REQUIRE asks for nvlink (inside a host: NVLink between GPUs), but between gpu0 and gpu1 there is no NVLink (P2P without native atomics)"

# ---- a job ----
both=(env "LD_LIBRARY_PATH=$fakes/nvml:$fakes/cuda")
# Ranks 0 and 1 on one GPU, 2 without a GPU, 3 on another one.
# shellcheck disable=SC2016 # for the ranks' shells
spread='[ $ODC_RANK = 2 ] || export ODC_DEVICE=cuda:$((ODC_RANK / 2)); exec "$0" topo "$@"'
expect 0 "${both[@]}" "$odc" run -n 4 -- bash -c "$spread" "$odc" --why
memory_of() { sed 's/^\[0\] //' "$work/out" | awk '/^GPU memory:/ { inside = 1 } !NF { inside = 0 } inside' | tr -s ' '; }
host=$(awk '$2 == 0 { print $3; exit }' "$work/out")
same "$(memory_of)" "GPU memory:
 rank host 0 1 2 3
 0 $host - cuda none cuda
 1 $host cuda - none cuda
 2 $host none none - none
 3 $host cuda cuda none -"
[ "$(grep -cE '^\[0\] [0-3] to [0-3]  shm: ' "$work/out")" -eq 12 ] || fail "not twelve reasons of host memory: $out"
[ "$(grep -cE '^\[0\] [013] to [013]  GPU memory, cuda: ' "$work/out")" -eq 6 ] || fail "not six reasons of GPU memory: $out"
contains "$out" "[0] 0 to 1  GPU memory, cuda: the same GPU, cuda:0; not shm: cuda is faster; fabric: never inside a host"
contains "$out" "[0] 1 to 3  GPU memory, cuda: cuda:0 to cuda:1 of that rank, with native atomics; not shm: "
same "$(grep -c "GPU memory, " "$work/out")" 7
contains "$out" "[0] 2 to 2  GPU memory, none: rank 2 has no GPU (config.device or ODC_DEVICE names it)"
expect 0 "${both[@]}" FAKE_CUDA_P2P=none "$odc" run -n 4 -- bash -c "$spread" "$odc" --why 3 1
same "$(cut -c 5- "$work/out" | grep -c "^3 to 1  ")" 2
contains "$out" "3 to 1  GPU memory, shm, staged: through host memory, as cuda:1 and cuda:0 of that rank cannot read each other's"
expect 0 "${both[@]}" FAKE_CUDA_P2P=none "$odc" run -n 4 -- bash -c "$spread" "$odc" --json
sed -i 's/^\[0\] //' "$work/out"
python "
assert [[(route['memory'], route['transport'], route['access']) for route in row['gpu_routes']]
    for row in machine['ranks']][3] == [('gpu', 'shm', 'staged')] * 2 + [('gpu', None, 'none'), ('gpu', 'cuda', 'direct')]"


export ODC_REQUIRE=nvlink
# shellcheck disable=SC2016 # for the ranks' shells
each='export ODC_DEVICE=cuda:$ODC_RANK; exec "$0" topo'
# One whose first failing rank does not end the others.
# shellcheck disable=SC2016
none='export ODC_DEVICE=cuda:$ODC_RANK; "$0" topo; [ $? -eq 1 ]'
# unmet TEXT SETTING...: each of the job's ranks reports this.
unmet() {
    local words=$1
    shift
    expect 0 "${both[@]}" "$@" "$odc" run -n 3 -- bash -c "$none" "$odc"
    [ "$(grep -cF "ODC_REQUIRE asks for nvlink (inside a host: NVLink between GPUs), but $words" "$work/err")" -eq 3 ] ||
        fail "not all say '$words': $err"
}
full=FAKE_NVML_LINKS=0-1:4,0-2:4,1-2:4
expect 0 "${both[@]}" $full "$odc" run -n 3 -- bash -c "$each" "$odc"
expect 0 "${both[@]}" FAKE_NVML_LINKS=0-switch:18,1-switch:18,2-switch:18 "$odc" run -n 3 -- bash -c "$each" "$odc"
# Ranks on one GPU need no NVLink, so NVML is not opened, and a single rank has no peer.
expect 0 env "LD_LIBRARY_PATH=$fakes/cuda" ODC_DEVICE=cuda:1 "$odc" run -n 3 -- "$odc" topo
expect 0 env -u ODC_DEVICE "$odc" run -n 1 -- "$odc" topo
# Each rank names the first pair that lacks it, even if it is not part of it.
unmet "between the GPUs of rank 0 (host $host, cuda:0) and rank 2 (host $host, cuda:2) there is no NVLink (P2P with native atomics)" \
    FAKE_NVML_LINKS=0-1:4
unmet "between the GPUs of rank 1 (host $host, cuda:1) and rank 2 (host $host, cuda:2) there is no NVLink (P2P without" \
    FAKE_NVML_LINKS=0-1:4,0-2:4 FAKE_CUDA_P2P=no-atomics
unmet "whether there is NVLink between the GPUs of rank 0 (host $host, cuda:0) and rank 1 (host $host, cuda:1) is unknown" \
    $full FAKE_NVML_FAIL=nvmlDeviceGetP2PStatus:999
unknown="nothing is known of NVLink between the GPUs of rank 0 (host $host, cuda:0) and rank 1 (host $host, cuda:1): NVML"
has_nvml || unmet "$unknown unavailable: libnvidia-ml.so.1 not found" "LD_LIBRARY_PATH=$fakes/cuda"
unmet "$unknown unavailable: nvmlInit failed: Driver Not Loaded" $full FAKE_NVML_FAIL=nvmlInit_v2:9
unmet "nothing is known of the GPU of rank 0 (host $host, cuda:0): NVML does not show it" \
    $full FAKE_NVML_FAIL=nvmlDeviceGetUUID:15
unmet "the GPU of rank 0 (host $host, cuda:0) is a MIG instance of 0000:10:00.0, and of those no NVLink is known" FAKE_CUDA_MIG=2
# With NVLink that fails odc_init's self-test, each rank reports its own reason.
expect 0 "${both[@]}" $full FAKE_CUDA_P2P=lossy "$odc" run -n 2 -- bash -c "$none" "$odc"
contains "$err" "but the route between the GPUs of rank 0 (host $host, cuda:0) and rank 1 (host $host, cuda:1) is not direct: through host memory, as sums"
expect 1 "${both[@]}" $full "$odc" run -n 4 -- bash -c "$spread" "$odc"
contains "$err" "), but rank 2 (host $host) has no GPU (config.device or ODC_DEVICE names it)"
# GPUs that CUDA_VISIBLE_DEVICES hides from each other are found, and the error is about the route.
# shellcheck disable=SC2016 # for the ranks' shells
expect 1 "${both[@]}" $full "$odc" run -n 2 -- bash -c 'CUDA_VISIBLE_DEVICES=$ODC_RANK ODC_DEVICE=cuda:0 exec "$0" topo' "$odc"
contains "$err" "is not direct: through host memory, as this process does not see that rank's GPU, there cuda:0"

# Ranks of other hosts get the error, too; between hosts nothing is required.
# shellcheck disable=SC2016
hosts=(env ODC_INTERFACE=lo "$odc" run -n 4 --hosts "a,b" --via 'env ODC_HOST_ID={host}' --address 127.0.0.1 --)
expect 0 "${both[@]}" FAKE_NVML_LINKS=0-1:4,2-3:4 "${hosts[@]}" bash -c "$each" "$odc"
expect 0 "${both[@]}" FAKE_NVML_LINKS=0-1:4 "${hosts[@]}" bash -c "$none" "$odc"
[ "$(grep -cF "but between the GPUs of rank 2 (host b, cuda:2) and rank 3 (host b, cuda:3) there is no NVLink (P2P" \
    "$work/err")" -eq 4 ] || fail "not all of both hosts say why: $err"

[ "$failures" -eq 0 ]

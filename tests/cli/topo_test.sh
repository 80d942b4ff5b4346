#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# odc topo: recorded machines compared with their golden output, this machine, a network namespace with unusable interfaces, the
# picture, jobs, and errors for bad input.
set -u

odc=${ODC:?the path of the odc command}
recorded=${ODC_SOURCE_DIR:?the folder of the sources}/tests/data/topology
unset ODC_TRANSPORTS ODC_INTERFACE ODC_PROVIDER ODC_REQUIRE ODC_TOPOLOGY_XML
# shellcheck source-path=SCRIPTDIR source=../harness/shell_checks.sh
. "$ODC_SOURCE_DIR/tests/harness/shell_checks.sh"
namespace=odc-topo-$$
cleanup() {
    ip netns del "$namespace" 2>/dev/null
    rm -rf "$work"
}
trap cleanup EXIT

# refuses TEXT COMMAND...: status 2, one line that contains TEXT, nothing on stdout.
refuses() {
    local words=$1
    shift
    expect 2 "$@"
    contains "$err" "$words"
    [ -z "$out" ] && [ "$(wc -l <"$work/err")" -eq 1 ] || fail "'$*' prints more than one line: $out $err"
}

# python CODE: runs it with the last command's JSON as `machine`.
python() {
    python3 -c "import json; machine = json.load(open('$work/out')); $1" || fail "the JSON is wrong: $1"
}

# ---- recorded machines ----
for xml in "$recorded"/*.xml; do
    for libxml in 1 0; do # hwloc's own parser is used where libxml2 is not installed
        expect 0 env HWLOC_LIBXML=$libxml "$odc" topo --xml "$xml"
        cmp -s "$work/out" "${xml%.xml}.txt" ||
            fail "$(diff "${xml%.xml}.txt" "$work/out"); if this is meant, run tests/data/topology/write.sh"
    done
    expect 0 env ODC_TOPOLOGY_XML="$xml" "$odc" topo
    cmp -s "$work/out" "${xml%.xml}.txt" || fail "ODC_TOPOLOGY_XML=$xml shows something else than --xml"

    # The picture: two boxes are disjoint or one is inside the other, and each device has one.
    expect 0 "$odc" topo --xml "$xml" --svg "$work/picture.svg" --json
    python3 - "$work/picture.svg" "$work/out" <<'PYTHON' || fail "the picture of $xml is wrong"
import json, sys
import xml.etree.ElementTree as tree
svg = tree.parse(sys.argv[1]).getroot()
machine = json.load(open(sys.argv[2]))
boxes = [[float(rect.get(key)) for key in ("x", "y", "width", "height")] for rect in svg.iter() if rect.get("rx")]
boxes = [(x, y, x + width, y + height) for x, y, width, height in boxes]
for i, a in enumerate(boxes):
    assert a[2] < float(svg.get("width")) and a[3] < float(svg.get("height")), a
    for b in boxes[:i]:
        apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
        inside = a[0] > b[0] and a[1] > b[1] and a[2] < b[2] and a[3] < b[3]
        assert apart or inside, (a, b)
names = [span.text for span in svg.iter() if span.get("font-weight") == "bold"]
for device in machine["numa_nodes"] + machine["gpus"] + machine["nics"]:
    assert names.count(device["name"]) == 1, device
PYTHON
done

# ---- this machine ----
expect 0 "$odc" topo
contains "$out" "─ numa"
contains "$out" "loopback reaches this host only"
contains "$out" "from memory here to the like on another host:"
# A recorded machine has every provider, this one those of its libfabric.
expect 0 env "ODC_PROVIDER=tcp;ofi_rxm" "$odc" topo --json --save "$work/saved.xml"
python "assert {'lo'} <= {nic['name'] for nic in machine['nics']}; assert machine['numa_nodes'][0]['cores'] > 0"
mv "$work/out" "$work/live"
expect 0 env "ODC_PROVIDER=tcp;ofi_rxm" "$odc" topo --json --xml "$work/saved.xml"
cmp -s "$work/out" "$work/live" || fail "what --save recorded is another machine: $(diff "$work/live" "$work/out")"
if [ "$(id -u)" -eq 0 ] && setpriv --reuid=65534 --clear-groups "$odc" --version >/dev/null 2>&1; then
    expect 0 setpriv --reuid=65534 --clear-groups "$odc" topo
    contains "$out" "loopback reaches this host only"
fi

# Without libfabric.
: >"$work/libfabric.so.1"
expect 0 env LD_LIBRARY_PATH="$work" "$odc" topo
contains "$out" "fabric: rank 0 cannot use it: libfabric.so.1 cannot be loaded: $work/libfabric.so.1: file too short"
rm "$work/libfabric.so.1"

# ---- settings ----
export ODC_TOPOLOGY_XML=$recorded/dual-socket.xml
expect 0 env ODC_INTERFACE=ens4f0np0 "$odc" topo
contains "$out" "numa0   fabric: tcp from ens4f0np0 to ens4f0np0"
contains "$out" "ODC_INTERFACE leaves it out"
expect 0 env ODC_TRANSPORTS=shm "$odc" topo
contains "$out" "none; shm: rank 1 is on another host"
contains "$out" "fabric: ODC_TRANSPORTS of rank 0 leaves it out"
expect 0 env ODC_PROVIDER=verbs "$odc" topo
contains "$out" "tcp;ofi_rxm: ODC_PROVIDER leaves it out"
refuses 'ODC_INTERFACE="eth9" is wrong: this machine has no "eth9"; it has ens1f0np0' \
    env ODC_INTERFACE=eth9 "$odc" topo
refuses '"ib" is none of cxi, efa, opx, verbs, verbs;ofi_rxm, psm3, tcp, tcp;ofi_rxm, net' env ODC_PROVIDER=ib "$odc" topo
refuses '"tcp" is none of cuda, shm, ' env ODC_TRANSPORTS=tcp "$odc" topo
expect 0 "$odc" topo --why
contains "$out" "  shm: the same host; not fabric: never inside a host"
[ "$(grep -c "; not shm: rank 1 is on another host (another)" "$work/out")" -eq 2 ] || fail "no reasons: $out"
expect 0 env ODC_REQUIRE=shm,rdma "$odc" topo
[ "$(grep -cx "  ODC_REQUIRE is met" "$work/out")" -eq 1 ] || fail "shm is not met: $out"
[ "$(grep -c "^          ODC_REQUIRE asks for rdma (between hosts: an RDMA" "$work/out")" -eq 2 ] || fail "rdma: $out"
expect 0 env ODC_REQUIRE=nvlink "$odc" topo --json
python "
assert 'nvlink (inside a host: NVLink between GPUs), but this machine has no GPU' in machine['on_this_host']['unmet_requirement'], machine
assert [route['unmet_requirement'] for route in machine['to_another_host']] == [None, None], machine"
unset ODC_TOPOLOGY_XML
expect 0 env ODC_REQUIRE=rdma "$odc" topo --xml "$recorded/dgx-h100.xml"
[ "$(grep -cx " *ODC_REQUIRE is met" "$work/out")" -eq 3 ] || fail "rdma is not met: $out"
# Between hosts GPU memory takes the route of host memory, from the NIC nearest to the GPU.
expect 0 "$odc" topo --json --xml "$recorded/dgx-h100.xml"
python "
for route in machine['to_another_host']:
    gpu = route['from'].startswith('gpu')
    assert (route['memory'], route['access']) == ('gpu' if gpu else 'host', 'staged'), route
    assert route['transport'] == 'fabric' and route['why'].startswith('through host memory; ') == gpu, route
    assert not gpu or route['nic'] == 'mlx5_' + route['from'][3:], route
    assert not gpu or 'is on another host' in route['why_not']['cuda'], route
assert machine['on_this_host']['access'] == 'direct' and 'unmet_requirement' not in machine['on_this_host'], machine"

# ---- bad input ----
refuses "No such file" "$odc" topo --xml "$work/none.xml"
refuses "ODC_TOPOLOGY_XML=\"$work/none.xml\" is wrong: the recorded machine" \
    env ODC_TOPOLOGY_XML="$work/none.xml" "$odc" topo
: >"$work/empty.xml"
refuses "it is empty" "$odc" topo --xml "$work/empty.xml"
refuses "is not a topology that hwloc can read" "$odc" topo --xml "$recorded/README.md"
head -c 3000 "$recorded/dgx-h100.xml" >"$work/half.xml"
refuses "is not a topology that hwloc can read" "$odc" topo --xml "$work/half.xml"
sed 's/"loopback"/"loop"/' "$recorded/laptop.xml" >"$work/word.xml"
refuses '"lo" has odc.kind "loop"; it must be one of Ethernet' "$odc" topo --xml "$work/word.xml"
sed '15s/complete_cpuset/co4plete_cpuset/' "$recorded/laptop.xml" >"$work/byte.xml"
for libxml in 1 0; do
    refuses 'hwloc can read: line 15: this Core has no complete_cpuset; record one with' \
        env HWLOC_LIBXML=$libxml ODC_TOPOLOGY_XML="$work/byte.xml" "$odc" topo
done
truncate -s 65M "$work/large.xml"
refuses "it has 68157440 bytes, and no machine takes more than 67108864" "$odc" topo --xml "$work/large.xml"
refuses "--why A B is about the ranks of a job" "$odc" topo --why 0 1
mkfifo "$work/pipe.xml"
for pipe in "$work/pipe.xml" /dev/zero; do
    refuses "the recorded machine \"$pipe\" cannot be read: it is not a regular file" "$odc" topo --xml "$pipe"
    refuses "ODC_TOPOLOGY_XML=\"$pipe\" is wrong: the recorded machine" env ODC_TOPOLOGY_XML="$pipe" "$odc" topo
done
refuses "--save records this machine" "$odc" topo --save "$work/x" --xml "$recorded/laptop.xml"
expect 1 "$odc" topo --svg "$work/none/picture.svg"
contains "$err" "picture.svg cannot be written: No such file"

# ---- a job ----
expect 0 "$odc" run -n 4 -- "$odc" topo
[ "$(grep -cE '^\[0\] +[0-3] +[^ ]+ +(-|shm) +(-|shm) +(-|shm) +(-|shm)$' "$work/out")" -eq 4 ] || fail "no matrix: $out"
[ "$(wc -l <"$work/out")" -eq 5 ] || fail "not a head and four rows: $out"
expect 0 "$odc" run -n 4 -- "$odc" topo --why
[ "$(grep -cE '^\[0\] [0-3] to [0-3]  shm: ' "$work/out")" -eq 12 ] || fail "not twelve reasons: $out"
[ "$(grep -cE '^\[0\] ([0-3]) to \1  GPU memory, none: rank \1 has no GPU \(' "$work/out")" -eq 4 ] || fail "no GPU: $out"
expect 0 "$odc" run -n 4 -- "$odc" topo --why 3 1
[ "$(grep -cE '^\[0\] 3 to 1  (shm: |GPU memory, none: rank 3 has no GPU)' "$work/out")" -eq 2 ] &&
    [ "$(wc -l <"$work/out")" -eq 2 ] || fail "one pair: $out"
expect 0 "$odc" run -n 20 -- "$odc" topo
contains "$out" "first letter of the transport"
expect 0 "$odc" run -n 3 -- "$odc" topo --json
sed -i 's/^\[0\] //' "$work/out"
python "assert [[(route['memory'], route['transport'], route['access']) for route in row['routes']]
    for row in machine['ranks']] == [[('host', 'shm', 'direct')] * 3] * 3
assert [[(route['memory'], route['transport'], route['access']) for route in row['gpu_routes']]
    for row in machine['ranks']] == [[('gpu', None, 'none')] * 3] * 3"
expect 0 "$odc" run -n 3 -- "$odc" topo --json --why 2 1
sed -i 's/^\[0\] //' "$work/out"
python "assert [(row['rank'], [route['to'] for route in row['routes']]) for row in machine['ranks']] == [(2, [1])]"
expect 2 "$odc" run -n 2 -- "$odc" topo --why 0 2
contains "$err" "--why names rank 2, but the job has ranks 0 to 1"
expect 2 "$odc" run -n 2 -- "$odc" topo --xml "$recorded/laptop.xml"
contains "$err" "use them outside a job"

# A host's name is its ODC_HOST_ID.
expect 0 env ODC_INTERFACE=lo "$odc" run -n 2 --hosts a,b --via 'env ODC_HOST_ID={host}' --address 127.0.0.1 -- "$odc" topo
[ "$(grep -cE '^\[0\] +(0  a +- +fabric|1  b +fabric +-)$' "$work/out")" -eq 2 ] || fail "no matrix of a and b: $out"
expect 0 env ODC_INTERFACE=lo "$odc" run -n 2 --hosts a,b --via 'env ODC_HOST_ID={host}' --address 127.0.0.1 -- \
    "$odc" topo --why 0 1
contains "$out" "; the node cache is off, as this rank shares its host with no other"
# The pairs between hosts, and no other, say whether the first one's host has a node cache. By default both hosts have one; then
# host a has none, by one of its ranks, and host b one of its own size.
two_hosts=(env ODC_INTERFACE=lo "$odc" run -n 4 --hosts "a,b" --via 'env ODC_HOST_ID={host}' --address 127.0.0.1 --)
cached='this host reads it once a minibatch, and sends its sums once, for shards of which it has a slice, while'
expect 0 "${two_hosts[@]}" env -u ODC_NODE_CACHE "$odc" topo --why
[ "$(grep -cE "^\[0\] ([01] to [23]|[23] to [01])  fabric: .*; $cached [0-9]+ bytes a rank suffice \(ODC_NODE_CACHE of rank [0-3]\)" \
    "$work/out")" -eq 8 ] && [ "$(grep -c ODC_NODE_CACHE "$work/out")" -eq 8 ] || fail "not two node caches: $out"
# shellcheck disable=SC2016 # the ranks'
expect 0 "${two_hosts[@]}" env ODC="$odc" bash -c 'size=(3000000 off 1000000 2000000)
    ODC_NODE_CACHE=${size[ODC_RANK]} exec "$ODC" topo --why'
without='each rank of this host reads it and adds to it for itself, as rank 1 has ODC_NODE_CACHE=off; not shm'
[ "$(grep -cE "^\[0\] [01] to [23]  fabric: .*; $without" "$work/out")" -eq 4 ] &&
    [ "$(grep -cE "^\[0\] [23] to [01]  fabric: .*; $cached 1000000 bytes a rank suffice \(ODC_NODE_CACHE of rank 2\)" \
        "$work/out")" -eq 4 ] && [ "$(grep -c ODC_NODE_CACHE "$work/out")" -eq 8 ] || fail "not a node cache on host b alone: $out"
# Ranks that meet by name cannot be on two hosts.
expect 1 "$odc" run -n 2 -- bash -c "ODC_HOST_ID=h\$ODC_RANK exec $odc topo"
contains "$err" "rank 0 counts as host h0, this rank as host h1; ranks that meet by name are of one host: give all"

# Ranks of two hosts that have no provider in common.
expect 1 env ODC_INTERFACE=lo "$odc" run -n 2 --hosts a,b --via 'env ODC_HOST_ID={host}' --address 127.0.0.1 -- \
    bash -c "ODC_PROVIDER=\$([ \$ODC_RANK = 0 ] && echo tcp || echo net) exec $odc topo"
grep -qE "one provider of plain Ethernet; rank 1 has net, but those before it share only tcp|rank 1 has no NIC that can be" \
    "$work/err" || fail "no reason: $err"

# ---- a network namespace with unusable interfaces, and one interface with a neighbour ----
# In a chroot whose root is not a mount point a namespace can be made, but not entered.
if ! { ip netns add "$namespace" && ip netns exec "$namespace" true; } 2>"$work/err"; then
    echo "no network namespace can be used here ($(head -n 1 "$work/err")); its test is left out"
else
    in_it=(ip netns exec "$namespace")
    "${in_it[@]}" bash -e <<'SETUP' || fail "the interfaces of the namespace cannot be made"
ip link set lo up
ip link add outside type veth peer name far
ip link add unplugged type veth peer name far2
ip link add off type veth peer name far3
ip link add bare type veth peer name far4
ip link add cni type bridge
ip link set far master cni
ip address add 10.7.0.1/24 dev outside
ip address add 10.7.1.1/24 dev unplugged
ip address add 10.7.3.1/24 dev cni
for one in outside far unplugged bare far4 cni; do ip link set $one addrgenmode none up; done
if ip link add dum type dummy 2>/dev/null; then ip address add 10.7.4.1/24 dev dum; ip link set dum up; fi
if ip tuntap add tunnel mode tun 2>/dev/null; then ip address add 10.7.5.1/24 dev tunnel; ip link set tunnel up; fi
SETUP
    for way in "ip netns exec $namespace" "nsenter --net=/run/netns/$namespace"; do # the second one keeps the old /sys
        # shellcheck disable=SC2086
        expect 0 $way "$odc" topo --json
        python "
nics = {nic['name']: nic for nic in machine['nics']}
wanted = {'lo': 'loopback', 'unplugged': 'no carrier', 'off': 'it is down', 'bare': 'no IP address', 'cni': 'a bridge without'}
for name, why in wanted.items():
    assert why in nics[name]['why_not'], nics[name]
for name, why in {'dum': 'a dummy interface', 'tunnel': 'no carrier'}.items():
    assert name not in nics or why in nics[name]['why_not'], nics[name]
assert nics['outside'].get('why_not') is None and nics['outside']['networks'] == ['10.7.0.1/24'], nics['outside']
assert nics.get('tunnel', {'kind': 'tunnel'})['kind'] == 'tunnel', nics['tunnel']
assert {route['nic'] for route in machine['to_another_host']} == {'outside'}, machine['to_another_host']"
    done
    python "
for nic in machine['nics']:
    assert nic['bus_id'] is None or nic['why_not'] == 'it belongs to another network namespace', nic"
    expect 0 "${in_it[@]}" env FI_PROVIDER=udp "$odc" topo
    contains "$out" 'tcp;ofi_rxm: libfabric does not offer it (FI_PROVIDER="udp" is set)'
fi

# Without sysfs there is little to show, and nothing of hwloc's on stderr.
if unshare -m true 2>/dev/null; then
    for verb in info topo; do
        expect 0 unshare -m sh -c 'mount -t tmpfs none /sys && exec "$0" "$1"' "$odc" $verb
        same "$err" ""
    done
else
    echo "without sysfs: skipped, no mount namespace can be made"
fi

[ "$failures" -eq 0 ]

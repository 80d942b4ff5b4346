#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Jobs on separate hosts: they train, and when a rank, a host or a cable is lost every remaining rank ends with an error that
# names the missing ones.
set -u

source=${ODC_SOURCE_DIR:?the folder of the sources}
steps=${ODC_BUILD_DIR:?the folder of the build}/tests/faults/steps
odc=$ODC_BUILD_DIR/tools/odc
# shellcheck source-path=SCRIPTDIR source=../harness/shell_checks.sh
. "$source/tests/harness/shell_checks.sh"
export steps odc work
export ODC_TIMEOUT_MS=60000

# in_hosts ARGUMENT... -- SCRIPT: the script's output in $out, its exit status in $status.
in_hosts() {
    rm -rf "$work/there" && mkdir "$work/there"
    out=$(timeout 100 bash "$source/tests/harness/hosts.sh" "${@:1:$#-1}" bash -c "${*: -1}" 2>&1)
    status=$?
    if [ "$status" -eq 77 ]; then
        echo "skipped: $out"
        exit 77
    fi
}

# all_ok RANKS
all_ok() {
    [ "$status" -eq 0 ] || fail "ended with $status: $out"
    [ "$(grep -c '^rank [0-9]*: ok$' <<<"$out")" -eq "$1" ] || fail "not all of $1 ranks are ok: $out"
}

# each_says RANKS PATTERN: every one of these ranks ends with an error that matches.
each_says() {
    local rank
    for rank in $1; do
        grep -qE "^rank $rank: .*$2" <<<"$out" || fail "rank $rank does not say '$2': $out"
    done
}

# Waits until the ranks are in the middle of their job.
under_way='under_way() {
    for rank in "$@"; do
        for try in $(seq 600); do [ -s "$work/there/$rank" ] && break; sleep 0.05; done
    done
}'

# ---- they train ----
in_hosts 3 -- '"$HOSTS" ranks 6 "$steps" 20'
all_ok 6
in_hosts 2 -6 -- '"$HOSTS" ranks 4 "$steps" 20'
all_ok 4

# Hosts with the same name are told apart.
in_hosts 2 -- '"$HOSTS" ranks 4 "$odc" topo'
name=$(uname -n)
[ "$(grep -cE "(0|1)  $name +(-|shm) +(-|shm) +fabric +fabric$" <<<"$out")" -eq 2 ] &&
    [ "$(grep -cE "(2|3)  $name #2 +fabric +fabric +(-|shm) +(-|shm)$" <<<"$out")" -eq 2 ] || fail "no matrix: $out"

# ---- one of two interfaces reaches nobody ----
in_hosts 2 --wrong-interface -- '
    ODC_LOG=info "$HOSTS" ranks 4 "$steps" 20 && "$HOSTS" ranks 2 "$odc" topo --why 0 1'
all_ok 4
contains "$out" ": gets no answer from rank 2 from NIC wrong0 to wrong0; tries another route"
grep -q 'from net0 to net0: .*tried without an answer: wrong0 (10[.0-9]*/24) to wrong0' <<<"$out" ||
    fail "the route is not explained: $out"
in_hosts 2 --wrong-interface -- 'ODC_INTERFACE=wrong0 "$HOSTS" ranks 2 "$steps" 1'
each_says "-1" "no transport connects .* tried without an answer: wrong0 \\(10[.0-9]*/24\\) to wrong0"

# ---- both hosts have a private network with the same address ----
in_hosts 2 -- '
    for host in 0 1; do
        "$HOSTS" on $host sh -c "ip link add same0 type veth peer name same1 && ip address add 10.0.2.15/24 dev same0 &&
            ip link set same0 up && ip link set same1 up" || exit
    done
    "$HOSTS" ranks 4 "$steps" 20'
all_ok 4

# ---- link-local addresses only, and different interface numbers on each host ----
in_hosts 2 -- '
    for host in 0 1; do
        at=$ODC_TEST_HOSTS.$host
        [ $host = 0 ] || ip -n "$at" link add other0 type bridge
        ip -n "$at" link add link0 type veth peer name link$host netns "$ODC_TEST_HOSTS.switch" &&
            ip -n "$ODC_TEST_HOSTS.switch" link set link$host up master bridge &&
            ip netns exec "$at" sysctl -qw net.ipv6.conf.link0.accept_dad=0 && ip -n "$at" link set link0 up || exit
    done
    for host in 0 1; do
        for try in $(seq 600); do
            ip -n "$ODC_TEST_HOSTS.$host" -6 address show dev link0 -tentative | grep -q fe80 && break; sleep 0.05
        done
    done
    export ODC_INTERFACE=link0
    "$HOSTS" ranks 4 "$steps" 20'
all_ok 4

# ---- one ODC_HOST_ID on two hosts ----
in_hosts 2 -- 'ODC_TIMEOUT_MS=5000 ODC_HOST_ID=node "$HOSTS" ranks 2 "$steps" 1'
grep -q 'ODC_HOST_ID="node" makes these ranks one host, which is wrong if they are on several' <<<"$out" ||
    fail "ODC_HOST_ID is not named: $out"

# ---- a rank dies ----
in_hosts 2 -- "$under_way"'
    "$HOSTS" ranks 4 sh -c '\''echo $$ >"$work/there/pid.$ODC_RANK"; exec "$steps" 100000 "$work/there"'\'' & job=$!
    under_way 0 1 2 3
    kill -KILL "$(cat "$work/there/pid.3")"
    wait $job'
each_says "0 1 2" "rank 3 \(host .*, pid [0-9]+\) (died|is lost)"

# ---- all ranks of a host are killed ----
in_hosts 3 -- "$under_way"'
    "$HOSTS" ranks 6 "$steps" 100000 "$work/there" & job=$!
    under_way 0 1 2 3 4 5
    "$HOSTS" kill 2
    wait $job'
each_says "0 1 2 3" "rank [45] \(host .*, pid [0-9]+\) (died|is lost)"

# ---- a cable is cut, and an interface goes down ----
for how in cut unplug; do
    in_hosts 2 -- "$under_way"'
        export ODC_TIMEOUT_MS=8000 # half of it, as ODC_SILENCE_MS is longer
        "$HOSTS" ranks 4 "$steps" 100000 "$work/there" & job=$!
        under_way 0 1 2 3
        "$HOSTS" '$how' 1
        wait $job'
    each_says "0 1" "rank [23] \(host .*\) is lost: nothing has been heard from it for"
    each_says "2 3" "rank [01] \(host .*\) is lost: nothing has been heard from it for"
done

# ---- a cable is cut while ranks claim ----
in_hosts 2 -- "$under_way"'
    export ODC_TIMEOUT_MS=8000
    "$HOSTS" ranks 4 "$steps" 100000 "$work/there" claims & job=$!
    under_way 0 1 2 3
    "$HOSTS" cut 1
    wait $job'
each_says "0 1" "rank [23] \(host .*\) is lost: nothing has been heard from it for"
grep -q 'odc_claim' <<<"$out" || fail "no claim is named: $out"
# Nobody has got an item twice, and both hosts have got some.
cat "$work"/there/items.* >"$work/items"
[ -s "$work/there/items.0" ] && [ -s "$work/there/items.2" ] || fail "a host has claimed nothing"
same "$(sort "$work/items" | uniq -d)" ""
each_says "2 3" "rank [01] \(host .*\) is lost: nothing has been heard from it for"

# ---- two of three hosts are cut off at once ----
in_hosts 3 -- "$under_way"'
    export ODC_SILENCE_MS=2000
    "$HOSTS" ranks 6 "$steps" 100000 "$work/there" & job=$!
    under_way 0 1 2 3 4 5
    "$HOSTS" cut 1; "$HOSTS" cut 2
    wait $job'
each_says "0 1" "rank [2-5] \(host .*\) is lost: nothing has been heard from it for"
each_says "2 3" "rank [0145] \(host .*\) is lost: nothing has been heard from it for"
each_says "4 5" "rank [0-3] \(host .*\) is lost: nothing has been heard from it for"

# ---- an outage that ends in time has no effect ----
in_hosts 2 -- "$under_way"'
    export ODC_SILENCE_MS=30000
    "$HOSTS" ranks 2 "$steps" 400 "$work/there" & job=$!
    under_way 0 1
    "$HOSTS" cut 1; sleep 1; "$HOSTS" mend 1
    wait $job'
all_ok 2

# ---- a rendezvous port that drops packets ----
in_hosts 2 -- '"$HOSTS" cut 0; ODC_TIMEOUT_MS=2000 "$HOSTS" ranks 2 "$steps" 1'
[ "$status" -eq 3 ] || fail "ended with $status: $out"
each_says "-1" "odc_init"

[ "$failures" -eq 0 ]

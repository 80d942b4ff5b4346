#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Hosts on one machine: network namespaces, each with an interface net0 on one Ethernet. As on real hosts, interfaces, addresses
# and ports are separate; loopback and abstract sockets are not shared.
#
# usage: hosts.sh N [-6] [--rate RATE] [--wrong-interface] -- COMMAND...
#   Makes hosts 0..N-1, runs COMMAND where it was called, and removes the hosts and all that runs on them, whatever ends
#   it. Ends as COMMAND does; with 77 (the tests' skip) and a line that says why where hosts cannot be made.
#     -6                  fd00:: addresses only
#     --rate RATE         each host sends at most at RATE, as tc writes it: 170mbit
#     --wrong-interface   each host has a wrong0, too, with an address, up and first in the list, that reaches nobody
#
# COMMAND finds this file as $HOSTS, for what follows:
#   $HOSTS on K COMMAND...      becomes COMMAND on host K
#   $HOSTS ranks R COMMAND...   runs COMMAND as ranks 0..R-1, in blocks over the hosts, waits for all of them and ends with
#                               the status of the first that failed, or 0; nothing is added to their output
#   $HOSTS count                prints N
#   $HOSTS address K            prints host K's address on net0
#   $HOSTS wrong_address K      prints its address on wrong0
#   $HOSTS unplug K             host K's interface is down, and its kernel knows
#   $HOSTS cut K                host K's interface stays up, but what it sends and what is sent to it is lost
#   $HOSTS mend K               undoes both
#   $HOSTS rate RATE            on a host: from now on it sends at most at RATE
#   $HOSTS kill K               kills all processes of host K
set -u
# shellcheck source-path=SCRIPTDIR source=usage.sh
. "$(dirname "$0")/usage.sh"

say() {
    echo "hosts.sh: $*" >&2
}

# ---- used by COMMAND ----
space() {
    [[ $1 =~ ^[0-9]+$ ]] && [ "$1" -lt "$ODC_TEST_HOSTS_COUNT" ] || {
        say "there is no host '$1'; the hosts are 0..$((ODC_TEST_HOSTS_COUNT - 1))"
        exit 2
    }
    echo "$ODC_TEST_HOSTS.$1"
}

# address_of NETWORK K: network 0 is the Ethernet's, 1 that of the wrong interfaces.
address_of() {
    if [ "$ODC_TEST_HOSTS_FAMILY" = 6 ]; then
        echo "fd00:$(($1 + 1))::$(($2 + 1))"
    else
        echo "10.111.$1.$(($2 + 1))"
    fi
}

on() {
    local name
    name=$(space "$1") || exit
    shift
    exec ip netns exec "$name" "$@"
}

# A port of host 0 on which nobody listens, below the ephemeral ports.
free_port() {
    local port
    while :; do
        port=$((10000 + RANDOM % 20000))
        [ -n "$(ip netns exec "$ODC_TEST_HOSTS.0" ss -Htan "sport = :$port")" ] || break
    done
    echo "$port"
}

ranks() {
    local size=$1 rank pid status first=0 address
    local -A pids=()
    shift
    [[ $size =~ ^[1-9][0-9]*$ ]] && [ $# -gt 0 ] || wrong_usage
    address=$(address_of 0 0)
    [ "$ODC_TEST_HOSTS_FAMILY" = 4 ] || address="[$address]"
    ODC_SIZE=$size
    ODC_RENDEZVOUS=$address:$(free_port)
    ODC_SECRET=$(od -An -N16 -tx1 /dev/urandom | tr -d ' ')
    ODC_JOB=$(od -An -N16 -tx1 /dev/urandom | tr -d ' ')
    export ODC_SIZE ODC_RENDEZVOUS ODC_SECRET ODC_JOB
    trap 'kill "${!pids[@]}" 2>/dev/null; exit 143' TERM INT HUP
    for ((rank = 0; rank < size; rank++)); do
        ODC_RANK=$rank ip netns exec "$ODC_TEST_HOSTS.$((rank * ODC_TEST_HOSTS_COUNT / size))" "$@" <&0 &
        pids[$!]=$rank
    done
    while [ ${#pids[@]} -gt 0 ]; do
        wait -n -p pid "${!pids[@]}" 2>/dev/null # bash would report signals
        status=$?
        if [ -z "${pid-}" ]; then # wait -n forgets the others that have ended; wait does not
            for pid in "${!pids[@]}"; do break; done
            wait "$pid" 2>/dev/null
            status=$?
        fi
        unset "pids[$pid]"
        [ "$first" -ne 0 ] || first=$status
    done
    exit "$first"
}

link() {
    local name
    name=$(space "$2") || exit
    case $1 in
    unplug) ip -n "$name" link set net0 down ;;
    cut) ip -n "$ODC_TEST_HOSTS.switch" link set "port$2" nomaster ;;
    mend)
        ip -n "$ODC_TEST_HOSTS.switch" link set "port$2" master bridge &&
            ip -n "$name" link set net0 up && address_up "$name" net0 "$(address_of 0 "$2")"
        ;;
    esac
}

# address_up NAMESPACE INTERFACE ADDRESS; IPv6 addresses are lost when an interface is down.
address_up() {
    if [ "$ODC_TEST_HOSTS_FAMILY" = 6 ]; then
        ip -n "$1" address replace "$3/64" dev "$2" nodad
    else
        ip -n "$1" address replace "$3/24" dev "$2"
    fi
}

# Repeated, because they may start others meanwhile.
kill_all_in() {
    local pids
    while pids=$(ip netns pids "$1" 2>/dev/null) && [ -n "$pids" ]; do
        kill -KILL $pids 2>/dev/null
        sleep 0.01
    done
}

# follow VERB ARGUMENT...
follow() {
    local name
    case $1 in
    count) [ $# -eq 1 ] || wrong_usage ;;
    on | ranks) [ $# -gt 2 ] || wrong_usage ;;
    *) [ $# -eq 2 ] || wrong_usage ;;
    esac
    case $1 in
    on) on "${@:2}" ;;
    ranks) ranks "${@:2}" ;;
    count) echo "$ODC_TEST_HOSTS_COUNT" ;;
    address) space "$2" >/dev/null && address_of 0 "$2" ;;
    wrong_address) space "$2" >/dev/null && address_of 1 "$2" ;;
    unplug | cut | mend) link "$@" ;;
    kill) name=$(space "$2") && kill_all_in "$name" ;;
    rate) tc qdisc replace dev net0 root tbf rate "$2" burst 256kb latency 100ms ;;
    esac
}

case ${1-} in
on | ranks | count | address | wrong_address | unplug | cut | mend | kill | rate)
    : "${ODC_TEST_HOSTS:?is not set: $1 is for what hosts.sh N -- COMMAND runs}"
    follow "$@"
    exit
    ;;
esac

# ---- hosts.sh N ----
export ODC_TEST_HOSTS_COUNT=${1-} ODC_TEST_HOSTS_FAMILY=4 ODC_TEST_HOSTS=odc$$ HOSTS
HOSTS=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
wrong_interface=
rate=
[[ $ODC_TEST_HOSTS_COUNT =~ ^[1-9][0-9]?$ ]] || wrong_usage
shift
while [ $# -gt 0 ]; do
    case $1 in
    -6) ODC_TEST_HOSTS_FAMILY=6 ;;
    --rate)
        rate=${2-}
        [[ $rate =~ ^[1-9][0-9]*[kmg]bit$ ]] || wrong_usage
        shift
        ;;
    --wrong-interface) wrong_interface=yes ;;
    --) break ;;
    *) wrong_usage ;;
    esac
    shift
done
[ $# -gt 1 ] || wrong_usage
shift

command=
# remove NAME: removes the hosts odcPID.* with the Ethernet between them, which is in a namespace, too.
remove() {
    local name
    for name in $(ip netns list 2>/dev/null | grep -oE "^$1\.[a-z0-9]+"); do
        kill_all_in "$name"
        ip netns delete "$name" 2>/dev/null # another run may have been faster
    done
}

end() {
    trap '' INT TERM HUP
    [ -z "$command" ] || kill -KILL -- "-$command" 2>/dev/null
    remove "$ODC_TEST_HOSTS"
}

# Remove what a killed run left behind.
remove_stale() {
    local name
    for name in $(ip netns list 2>/dev/null | grep -oE '^odc[0-9]+\.' | sort -u); do
        [ -e "/proc/${name//[!0-9]/}" ] || remove "${name%.}"
    done
}

# Runs ip or tc; where it fails the test is skipped.
try() {
    local words
    words=$("$@" 2>&1) && return
    say "skipped, cannot make hosts: '$*' says: ${words//$'\n'/ }"
    exit 77
}

make_switch() {
    try ip netns add "$ODC_TEST_HOSTS.switch"
    try ip -n "$ODC_TEST_HOSTS.switch" link add bridge type bridge
    try ip -n "$ODC_TEST_HOSTS.switch" link set bridge up
}

# plug K INTERFACE PORT NETWORK
plug() {
    local host=$ODC_TEST_HOSTS.$1 switch=$ODC_TEST_HOSTS.switch
    try ip -n "$host" link add "$2" type veth peer name "$3$1" netns "$switch"
    try ip -n "$switch" link set "$3$1" up
    try ip -n "$host" link set "$2" up
    try address_up "$host" "$2" "$(address_of "$4" "$1")"
}

make_host() {
    try ip netns add "$ODC_TEST_HOSTS.$1"
    try ip -n "$ODC_TEST_HOSTS.$1" link set lo up
    [ -z "$wrong_interface" ] || plug "$1" wrong0 nowhere 1
    plug "$1" net0 port 0
    [ -z "$rate" ] || try ip netns exec "$ODC_TEST_HOSTS.$1" "$HOSTS" rate "$rate"
    try ip -n "$ODC_TEST_HOSTS.switch" link set "port$1" master bridge
}

command -v ip >/dev/null || {
    say "skipped, cannot make hosts: ip (iproute2) was not found"
    exit 77
}
trap end EXIT
remove_stale
make_switch
for ((host = 0; host < ODC_TEST_HOSTS_COUNT; host++)); do
    make_host "$host"
done

# In a process group of its own, so that none of it is left; in the background, so that signals are handled at once.
stop() {
    kill -"$1" -- "-$command" 2>/dev/null
    wait "$command"
    exit $((128 + $2))
}
trap 'stop INT 2' INT
trap 'stop TERM 15' TERM
trap 'stop HUP 1' HUP
set -m
"$@" <&0 &
command=$!
set +m
wait "$command" 2>/dev/null; exit # in one line: bash must not read on in a file that has changed

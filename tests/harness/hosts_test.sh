#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# hosts.sh: hosts reach each other and nobody else, links and processes end on command, and nothing is left behind.
set -u

hosts=${ODC_SOURCE_DIR:?the folder of the sources}/tests/harness/hosts.sh
# shellcheck source-path=SCRIPTDIR source=shell_checks.sh
. "$ODC_SOURCE_DIR/tests/harness/shell_checks.sh"

# no_host_left NAMESPACES: "odcPID", from the environment of a COMMAND that has ended.
no_host_left() {
    local left
    left=$(ip netns list | grep -E "^$1\.")
    [ -z "$left" ] || fail "left behind: $left"
    left=$(pgrep -f "$unique")
    [ -z "$left" ] || fail "processes left behind: $(pgrep -af "$unique")"
}

# ---- the command line ----
for wrong in "" "0 -- true" "two -- true" "2" "2 --" "2 true" "2 --colour -- true" "2 --rate -- true" "2 --rate fast -- true"; do
    # shellcheck disable=SC2086
    expect 2 "$hosts" $wrong
    contains "$err" "usage: hosts.sh"
done
expect 1 env -u ODC_TEST_HOSTS "$hosts" on 0 true
contains "$err" "is for what hosts.sh N"

# ---- hosts cannot be made ----
mkdir "$work/none"
for tool in bash env dirname basename sed grep; do
    ln -s "$(command -v $tool)" "$work/none/$tool"
done
expect 77 env PATH="$work/none" "$hosts" 2 -- true
same "$err" "hosts.sh: skipped, cannot make hosts: ip (iproute2) was not found"
printf '#!/bin/sh\n[ "$2" = list ] || { echo "Operation not permitted" >&2; exit 1; }\n' >"$work/none/ip"
chmod +x "$work/none/ip"
ln -s "$(command -v sort)" "$work/none/sort"
expect 77 env PATH="$work/none" "$hosts" 2 -- true
case $err in
"hosts.sh: skipped, cannot make hosts: 'ip netns add odc"*".switch' says: Operation not permitted") ;;
*) fail "where nothing is permitted it says: $err" ;;
esac

timeout 60 "$hosts" 1 -- true 2>"$work/err"
if [ $? -eq 77 ]; then
    cat "$work/err"
    [ "$failures" -eq 0 ] && exit 77
    exit 1
fi

# ---- what a host sends at most ----
expect 0 "$hosts" 2 --rate 170mbit -- sh -c 'for host in 0 1; do "$HOSTS" on $host tc qdisc show dev net0; done'
[ "$(grep -c "tbf .* rate 170Mbit " <<<"$out")" -eq 2 ] || fail "the hosts do not send at 170mbit: $out"
expect 0 "$hosts" 1 --rate 170mbit -- sh -c '"$HOSTS" on 0 "$HOSTS" rate 9mbit && "$HOSTS" on 0 tc qdisc show dev net0'
contains "$out" " rate 9Mbit "

# ---- reachability ----
export serve='import socket, sys
s = socket.create_server((sys.argv[1], 9000), family=socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
print("up", flush=True)
while True: s.accept()'
cat >"$work/reach.sh" <<'COMMAND'
set -u
# connects FROM ADDRESS SECONDS
connects() {
    "$HOSTS" on "$1" timeout "$3" bash -c ": </dev/tcp/$2/9000" 2>/dev/null
}
echo "$ODC_TEST_HOSTS" >"$1/spaces"
for host in 0 1 2; do
    "$HOSTS" on $host python3 -c "$serve" "$("$HOSTS" address $host)" >"$1/up.$host" &
    until [ -s "$1/up.$host" ]; do sleep 0.05; done
done
for from in 0 1 2; do
    for to in 0 1 2; do
        connects $from "$("$HOSTS" address $to)" 20 && echo "$from reaches $to"
    done
done
"$HOSTS" on 1 python3 -c "$serve" "$("$HOSTS" wrong_address 1)" >"$1/up.wrong" &
until [ -s "$1/up.wrong" ]; do sleep 0.05; done
connects 1 "$("$HOSTS" wrong_address 1)" 20 && echo "1 reaches its own wrong0"
connects 0 "$("$HOSTS" wrong_address 1)" 1 || echo "0 does not reach 1 at wrong0"
"$HOSTS" on 0 ip -br link show up | sed 's/[@ ].*//' | sort
COMMAND
for family in "" -6; do
    # shellcheck disable=SC2086
    expect 0 "$hosts" 3 $family --wrong-interface -- bash "$work/reach.sh" "$work"
    same "$out" "$(for from in 0 1 2; do for to in 0 1 2; do echo "$from reaches $to"; done; done)
1 reaches its own wrong0
0 does not reach 1 at wrong0
lo
net0
wrong0"
    no_host_left "$(cat "$work/spaces")"
    rm -f "$work"/up.*
done
expect 0 "$hosts" 1 -6 -- sh -c '"$HOSTS" on 0 ip -4 -o address show'
same "$(printf '%s\n' "$out" | grep -v ' lo ')" ""

# ---- links ----
cat >"$work/links.sh" <<'COMMAND'
address=$("$HOSTS" address 1)
"$HOSTS" on 1 python3 -c "$serve" "$address" >"$1" &
until [ -s "$1" ]; do sleep 0.05; done
reaches() { # SECONDS
    "$HOSTS" on 0 timeout "$1" bash -c ": </dev/tcp/$address/9000" 2>/dev/null && echo "reached" || echo "not reached"
}
state() { "$HOSTS" on 1 cat /sys/class/net/net0/operstate; }
reaches 20
"$HOSTS" cut 1 && state && reaches 1
"$HOSTS" mend 1 && reaches 20
"$HOSTS" unplug 1 && state && reaches 1
"$HOSTS" mend 1 && reaches 20
COMMAND
for family in "" -6; do
    rm -f "$work/up"
    # shellcheck disable=SC2086
    expect 0 "$hosts" 2 $family -- sh "$work/links.sh" "$work/up"
    # shellcheck disable=SC2086
    same "$(echo $out)" "reached up not reached reached down not reached reached"
done

# ---- ranks ----
expect 0 "$hosts" 2 -- sh -c '"$HOSTS" ranks 4 sh -c '\''
    echo "$ODC_RANK of $ODC_SIZE at $(cat /sys/class/net/net0/address), $ODC_RENDEZVOUS, $ODC_SECRET, $ODC_JOB"'\'
same "$(printf '%s\n' "$out" | cut -d ' ' -f 1-3 | sort)" "$(printf '0 of 4\n1 of 4\n2 of 4\n3 of 4')"
same "$(printf '%s\n' "$out" | cut -d ' ' -f 6- | sort -u | wc -l)" 1
same "$(printf '%s\n' "$out" | grep -E '^[01]' | cut -d ' ' -f 5 | sort -u | wc -l)" 1
same "$(printf '%s\n' "$out" | cut -d ' ' -f 5 | sort -u | wc -l)" 2
# Rank 0 fails once rank 1 is gone and the shell that runs the ranks waits again, so has seen it.
expect 7 "$hosts" 2 -- sh -c '"$HOSTS" ranks 3 sh -c '\''
    [ $ODC_RANK != 1 ] || { echo $$ >"$0"; exit 7; }
    until [ -s "$0" ] && [ ! -e "/proc/$(cat "$0")" ] && grep -q "^State:.S" "/proc/$PPID/status"; do sleep 0.05; done
    [ $ODC_RANK != 0 ] || exit 9'\'" '$work/first'"
# Killing a host's processes does not affect the others'.
expect 137 "$hosts" 2 -- sh -c "\"\$HOSTS\" ranks 4 sh -c 'echo up >>$work/ranks; [ \$ODC_RANK -gt 1 ] || exec sleep $unique
    while [ ! -e $work/killed ]; do sleep 0.05; done; echo \"rank \$ODC_RANK lives\"' &
    until [ \"\$(cat $work/ranks 2>/dev/null | wc -l)\" = 4 ]; do sleep 0.05; done
    \"\$HOSTS\" kill 0; touch $work/killed; wait \$!"
same "$(printf '%s\n' "$out" | sort)" "$(printf 'rank 2 lives\nrank 3 lives')"

# ---- nothing is left, however it ends ----
for signal in INT TERM HUP; do
    rm -f "$work/up"
    set -m
    env --default-signal=INT "$hosts" 2 -- sh -c "
        \"\$HOSTS\" on 1 setsid sh -c 'trap \"\" TERM INT HUP; while :; do sleep $unique; done' &
        sleep $unique & echo \"\$ODC_TEST_HOSTS\" >'$work/up'; wait" 2>/dev/null &
    pid=$!
    set +m
    wait_for_lines "$work/up" 1
    kill -$signal $pid
    wait $pid 2>/dev/null
    case $signal in INT) same "$?" 130 ;; TERM) same "$?" 143 ;; HUP) same "$?" 129 ;; esac
    no_host_left "$(cat "$work/up")"
done
# ... by SIGKILL, too, once other hosts are made.
rm -f "$work/up"
"$hosts" 1 -- sh -c "\"\$HOSTS\" on 0 sleep $unique & echo \$\$ >'$work/command'; echo \"\$ODC_TEST_HOSTS\" >'$work/up'
    exec sleep $unique" 2>/dev/null &
pid=$!
wait_for_lines "$work/up" 1
kill -KILL $pid
wait $pid 2>/dev/null
kill -KILL "$(cat "$work/command")" # it is on no host
expect 0 "$hosts" 1 -- true
no_host_left "$(cat "$work/up")"

[ "$failures" -eq 0 ] || exit 1
echo "hosts are made, parted and removed"

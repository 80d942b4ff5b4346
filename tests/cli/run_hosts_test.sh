#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of `odc run --hosts`. The hosts are names on this machine (ODC_HOST_ID), set by a start command of the test. As ssh
# does, it starts the agent in a session of its own: only the end of its input ends it.
set -u

odc=${ODC:?the path of the odc command}
# shellcheck source-path=SCRIPTDIR source=../harness/shell_checks.sh
. "${ODC_SOURCE_DIR:?the folder of the sources}/tests/harness/shell_checks.sh"
unset ODC_HOST_ID
exec </dev/null # rank 0 reads it

# Like ssh: prints a line of its own, and starts the command in another session.
cat >"$work/start" <<'START'
#!/bin/sh
echo "welcome to $1"
host=$1
shift
exec setsid -w env ODC_HOST_ID="$host" "$@"
START
# An agent of another version.
cat >"$work/older" <<'START'
#!/bin/sh
echo "odc-agent 0.0.1 ready 4321"
exec sleep 60
START
chmod +x "$work/start" "$work/older"
start=(--via "$work/start {host}" --address 127.0.0.1)

# ---- the ranks' environment ----
cat >"$work/rank" <<'RANK'
#!/bin/sh
echo "$ODC_RANK/$ODC_SIZE on $ODC_HOST_ID at ${ODC_RENDEZVOUS%:*}, $ODC_TIMEOUT_MS ms, in $(pwd), $(cat | wc -c) bytes"
echo "secret $ODC_SECRET"
echo "job $ODC_JOB"
ps -eo args | while read -r line; do
    case $line in *"$ODC_SECRET"*) echo "shows the secret: $line" ;; esac
done
RANK
chmod +x "$work/rank"
cd "$work" || exit 1
expect 0 env ODC_TIMEOUT_MS=54321 ODC_HOST_ID=mine "$odc" run -n 5 --hosts a,b "${start[@]}" -- "$work/rank"
for line in "0/5 on a" "1/5 on a" "2/5 on b" "3/5 on b" "4/5 on b"; do
    contains "$out" "[${line%%/*}] $line at 127.0.0.1, 54321 ms, in $work, 0 bytes"
done
contains "$out" "welcome to b"
secrets=$(printf '%s\n' "$out" | sed -n 's/^\[.\] secret //p' | sort -u)
same "$(printf '%s\n' "$secrets" | grep -cE '^[0-9a-f]{64}$')" 1
same "$(printf '%s\n' "$secrets" | wc -l)" 1
same "$(printf '%s\n' "$out" | sed -n 's/^\[.\] job //p' | sort -u | grep -cE '^[0-9a-f]{32}$')" 1
case $out in *"shows the secret"*) fail "the secret is on a command line: $out" ;; esac
expect 0 "$odc" run -n 2 --hosts=user@localhost,other --via "$work/start {host}" printenv ODC_RENDEZVOUS
contains "$out" "[0] localhost:"

# ---- ranks meet, on several hosts ----
if "$odc" info | grep -q "fabric *ready"; then
    expect 0 env ODC_INTERFACE=lo "$odc" run -n 3 --hosts a,b "${start[@]}" -- "$odc" bench sync --pairs 3
    contains "$out" "[0] rank 0 to ranks 1, 2: fabric: "
    # A namespace is a host that shares only the kernel.
    if hosts=$(ODC_HOST_ID='' bash "$ODC_SOURCE_DIR/tests/harness/hosts.sh" 2 -- bash -c '
        "$0" run -n 4 --hosts "$ODC_TEST_HOSTS.0,$ODC_TEST_HOSTS.1" --via "ip netns exec {host}" \
            --address "$($HOSTS address 0)" -- "$0" bench gather --bytes 64KiB --pairs 2' "$odc" 2>&1); then
        contains "$hosts" "[0] rank 0 to rank 1: shm: "
        contains "$hosts" "[0] rank 0 to ranks 2, 3: fabric: "
    elif [ $? -eq 77 ]; then
        echo "namespaces as hosts: skipped, $hosts"
    else
        fail "in namespaces: $hosts"
    fi
else
    echo "ranks that meet: skipped, $("$odc" info | grep fabric)"
fi

# ---- failures ----
expect 7 "$odc" run -n 4 --hosts a,b "${start[@]}" -- sh -c '[ $ODC_RANK = 2 ] && exit 7; sleep '"$unique"' & wait'
same "$(printf '%s\n' "$err" | head -n 1)" "odc: rank 2 exited with status 7"
nothing_left "sleep $unique"
# What fails on several hosts in one way is one line.
expect 5 "$odc" run -n 4 --hosts a,b "${start[@]}" -- sh -c '
    echo >>"$0"
    while [ "$(wc -l <"$0")" -lt 4 ]; do sleep 0.05; done; exit 5' "$work/all"
printf '%s\n' "$err" | head -n 1 | grep -qx 'odc: ranks 0-3 exited with status 5, rank [0-3] first' || fail "got '$err'"
# The status is the first failure's, also when a later host ends sooner.
expect 7 "$odc" run -n 3 --hosts a,b "${start[@]}" -- sh -c '
    [ $ODC_RANK = 0 ] && { echo >>"$0"; exit 7; }
    [ $ODC_RANK = 2 ] || exec sleep 30
    while [ ! -s "$0" ]; do sleep 0.05; done; sleep 0.5; exit 9' "$work/failed"
expect 127 "$odc" run -n 2 --hosts a,b "${start[@]}" -- "$work/nowhere"
contains "$err" "cannot start '$work/nowhere'"
expect 127 "$odc" run -n 2 --hosts a,b --via "$work/nowhere {host}" true
contains "$err" "cannot start '$work/nowhere'"
expect 1 "$odc" run -n 2 --hosts a,b --via "false {host}" true
contains "$err" " exited with status 1" # of a or b, whichever ended first
contains "$err" "odc: host "
expect 1 "$odc" run -n 1 --hosts a --via "$work/older {host}" true
contains "$err" "a host has odc 0.0.1, this is"
# An agent of a build that differs in the layout only.
version=$("$odc" --version | sed 's/^odc //')
layout=$(sed -n 's/^#define ODC_LAYOUT_VERSION //p' "$ODC_SOURCE_DIR/lib/base/layout_version.cc")
expect 1 "$odc" run -n 2 --hosts a,b --via "env LD_LIBRARY_PATH=$ODC_BUILD_DIR/tests/cli/next_layout ODC_HOST_ID={host}" true
contains "$err" "a host has odc $version+layout.4000000000, this is $version+layout.$layout; install one build on all"
mkdir "$work/gone"
(cd "$work/gone" && rmdir "$work/gone" && "$odc" run -n 1 --hosts a "${start[@]}" true >/dev/null 2>&1) &&
    fail "ran in a directory that is not there"

# ---- signals, and nothing is left ----
for signal in INT TERM; do
    case $signal in INT) number=2 ;; TERM) number=15 ;; esac
    : >"$work/up"
    set -m
    "$odc" run -n 4 --hosts a,b "${start[@]}" -- sh -c "echo up >>'$work/up'; sleep $unique & wait" >/dev/null 2>"$work/err" &
    pid=$!
    set +m
    wait_for_lines "$work/up" 4
    kill -$signal $pid
    wait $pid
    same "$?" $((128 + number))
    nothing_left "sleep $unique"
done
: >"$work/up"
"$odc" run -n 4 --hosts a,b "${start[@]}" -- sh -c "echo up >>'$work/up'; trap '' TERM HUP; sleep $unique; :" \
    >/dev/null 2>&1 &
pid=$!
wait_for_lines "$work/up" 4
kill -KILL $pid
{ wait $pid; } 2>/dev/null
nothing_left "$unique"
nothing_left "$work/start"

# ---- the command line ----
for wrong in "a,,b" "-oProxyCommand=x" 'a;b' 'a b' ','; do
    expect 2 "$odc" run -n 4 "--hosts=$wrong" "${start[@]}" true
    contains "$err" "is not the name of a host"
done
expect 2 "$odc" run -n 4 --hosts "" true
contains "$err" "names no host"
expect 2 "$odc" run -n 1 --hosts a,b "${start[@]}" true
contains "$err" "--hosts names 2 hosts for 1 ranks"
expect 2 "$odc" run -n 2 --hosts a,b --via "ssh a" true
contains "$err" "has no {host}"
expect 2 "$odc" run -n 2 --via "ssh {host}" true
contains "$err" "requires --hosts"
expect 2 "$odc" run -n 2 --hosts a,b "${start[@]}"
contains "$err" "no command"
for input in '' 'no JSON' '{}' '[1]' '{"first":0,"end":1}' 'signal 2'; do
    printf '%s\n' "$input" | timeout 30 "$odc" run --agent >"$work/out" 2>"$work/err"
    status=$?
    [ "$status" -eq 1 ] || [ "$status" -eq 2 ] || fail "an agent that hears '$input' ends with $status"
done

if [ "$failures" -ne 0 ]; then
    echo "$failures checks failed" >&2
    exit 1
fi
echo "odc run --hosts is as it should be"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of `odc run` and `odc info`, and of what all verbs share.
set -u

odc=${ODC:?the path of the odc command}
# shellcheck source-path=SCRIPTDIR source=../harness/shell_checks.sh
. "${ODC_SOURCE_DIR:?the folder of the sources}/tests/harness/shell_checks.sh"
seconds=30

now_ms() {
    date +%s%3N
}

# ---- every verb ----
expect 0 "$odc" --version
contains "$out" "odc "
expect 0 "$odc" --help
main_help=$out
for verb in run plan replay bench topo info; do
    contains "$out" "$verb"
    expect 0 "$odc" "$verb" --help
    contains "$out" "Usage"
    expect 0 "$odc" --help
done
expect 2 "$odc" gather
same "$err" "odc: there is no verb 'gather' (the verbs are run, plan, replay, bench, topo, info; see 'odc --help')"
expect 2 "$odc" tpoo
contains "$err" "odc: there is no verb 'tpoo'; did you mean topo? (the verbs are run,"
# Options: command line, the wrong option, the one that is meant.
while IFS='|' read -r line option meant; do
    read -ra words <<<"$line"
    expect 2 "$odc" "${words[@]}"
    verb=${words[0]}
    case $verb in -*) command=odc ;; *) command="odc $verb" ;; esac
    same "$err" "odc: $command has no option '$option'${meant:+; did you mean $meant?} (see '$command --help')"
done <<'OPTIONS'
--hlep|--hlep|--help
run -n 2 --host a true|--host|--hosts
run --rank=2 true|--rank|--ranks
run --agnt|--agnt|
plan --polcy lb-mini -|--polcy|--policy
plan - --ranks 2 --max-token=3|--max-token|--max-tokens
plan -x|-x|
plan -n 2|-n|--ranks
bench gather -n4|-n|--ranks
topo -n 2|-n|
replay --moedl 7b|--moedl|--model
bench gather --byte 3|--byte|--bytes
topo --svgg=x|--svgg|--svg
info --setings|--setings|--settings
info --frobnicate|--frobnicate|
OPTIONS
# Too little input: command line, what is said, whose help is named.
while IFS='|' read -r line said verb; do
    # shellcheck disable=SC2086
    expect 2 "$odc" $line
    same "$err" "odc: $said (see 'odc $verb --help')"
done <<'INPUT'
plan|FILE is required: Tokens of each sample, one number per line; - reads standard input|plan
plan --ranks 2|FILE is required: Tokens of each sample, one number per line; - reads standard input|plan
plan lengths|--ranks is required: Number of ranks|plan
bench|operation is required: gather, scatter-add, sync or claim|bench
run -n 2|no command to run was given|run
run -n 2 --hosts a,b|no command to run was given|run
INPUT
for words in '' help; do
    # shellcheck disable=SC2086 # no word, or one
    expect 0 "$odc" $words
    same "$out" "$main_help"
done
expect 0 "$odc" plan --help
help=$out
expect 0 "$odc" help plan
same "$out" "$help"
expect 2 "$odc" help gather
contains "$err" "there is no verb 'gather'"
if [ -w /dev/full ]; then
    "$odc" info >/dev/full 2>"$work/err" && fail "a full disk was not noticed"
fi
# No descriptor of odc takes the place of a closed stream.
for closed in '<&-' '>&-' '2>&-' '<&- >&- 2>&-'; do
    expect 0 bash -c "exec '$odc' run -n 2 -- sh -c 'echo out; echo err >&2' $closed"
    expect 0 bash -c "exec '$odc' info $closed"
done

# ---- odc info ----

library=$("$odc" info | sed -n 's/^from //p')
[ -f "$library" ] || fail "odc info names no file of the library: $library"
expect 0 "$odc" info
contains "$out" "shm"
contains "$out" "ready"
: >"$work/libfabric.so.1"
expect 0 env LD_LIBRARY_PATH="$work" "$odc" info
same "$(printf '%s\n' "$out" | grep '^  fabric')" \
    "  fabric   unavailable: libfabric.so.1 cannot be loaded: $work/libfabric.so.1: file too short"
expect 0 env FI_PROVIDER=udp "$odc" info
contains "$out" "  fabric   unavailable: libfabric "
contains "$out" " offers no provider that can be used here: none of cxi, efa, opx, verbs;ofi_rxm, psm3, tcp, tcp;ofi_rxm, net; FI_PROVIDER=\"udp\" narrows"
expect 0 env LD_LIBRARY_PATH="$work" "$odc" info --json
contains "$out" '"why_not": "libfabric.so.1 cannot be loaded: '
expect 0 env ODC_TIMEOUT_MS=1234 ODC_SECRET=hush "$odc" info --settings
contains "$out" "ODC_TIMEOUT_MS"
contains "$out" "1234"
for name in ODC_TRANSPORTS ODC_INTERFACE ODC_PROVIDER ODC_REQUIRE ODC_HOST_ID ODC_STAGING_BYTES ODC_SILENCE_MS; do
    contains "$out" "  $name "
done
case $out in *refuse*) fail "odc info says of good values that they are refused: $out" ;; esac
case $out in *hush*) fail "odc info printed the secret" ;; esac
for wrong in ODC_TIMEOUT_MS=abc ODC_RANK=4; do
    expect 1 env ODC_RANK=0 ODC_SIZE=2 "$wrong" "$odc" info --settings
    name=${wrong%=*}
    contains "$(printf '%s\n' "$out" | grep "^  $name ")" "odc_init will refuse it: $name=\"${wrong#*=}\" is wrong"
    same "$(printf '%s\n' "$out" | grep -c refuse)" 1
done
# Every value is checked, however many are wrong, and whether or not a job of one host needs it.
all_wrong=(ODC_TRANSPORTS=ib ODC_PROVIDER=ib ODC_REQUIRE=ib ODC_INTERFACE=none0 ODC_TOPOLOGY_XML=/none.xml
    ODC_STAGING_BYTES=1 ODC_SILENCE_MS=x ODC_TIMEOUT_MS=0 ODC_HOST_ID="$(printf 'x%.0s' {1..64})")
expect 1 env "${all_wrong[@]}" "$odc" info --settings
same "$(grep -c '^odc: ODC_.* is wrong' "$work/err")" "${#all_wrong[@]}"
same "$(printf '%s\n' "$out" | grep -c refuse)" "${#all_wrong[@]}"
table=$out
for wrong in "${all_wrong[@]}"; do
    name=${wrong%%=*}
    contains "$(printf '%s\n' "$table" | grep "^  $name ")" "odc_init will refuse it: $name=\"${wrong#*=}\" is wrong"
    expect 1 env "$wrong" "$odc" run -n 2 -- "$odc" topo
    contains "$err" "$name=\"${wrong#*=}\" is wrong"
done
# Also where its error names no setting, or two.
for wrong in ODC_DEVICE=gpu0 ODC_RANK=0 ODC_SIZE=2; do
    expect 1 env "$wrong" ODC_LOG=none "$odc" info
    contains "$err" 'odc: ODC_LOG="none" is wrong'
    same "$(grep -c '^odc: ' "$work/err")" 2
done
expect 1 env ODC_TRANSPORTS=shn "$odc" info
contains "$err" 'odc: ODC_TRANSPORTS="shn" is wrong'
expect 1 env ODC_TIMEOUT_MS=0 "$odc" info --json
contains "$out" '"refused": "ODC_TIMEOUT_MS=\"0\" is wrong'
expect 1 env ODC_DEVICE=gpu0 "$odc" info --json
contains "$(tr -d ' \n' <<<"$out")" '"other_refusals":["odc_init:thedeviceis'
expect 0 "$odc" info --json
if command -v python3 >/dev/null; then
    printf '%s' "$out" | python3 -c '
import json, sys
info = json.load(sys.stdin)
assert info["build"] and info["version"]
assert any(t["name"] == "shm" and t["ready"] for t in info["transports"])
assert all("why_not" in t for t in info["transports"] if not t["ready"])
assert any(s["name"] == "ODC_TIMEOUT_MS" for s in info["settings"])' || fail "odc info --json is wrong"
fi

# A misspelt variable is read by nothing: it is named, with the one that is meant. Those of other parts and of tests are known.
expect 0 env ODC_TRANSPORT=shm ODC_MINE=1 ODC_LIBRARY=/x ODC_NCCL=/x ODC_TEST_X=1 ODC_BENCH_RATE=1 ODC_LOG=warn "$odc" info
same "$err" "odc: ODC_MINE is set, but nothing reads it
odc: ODC_TRANSPORT is set, but nothing reads it; did you mean ODC_TRANSPORTS?"
expect 0 env ODC_TRANSPORT=shm "$odc" info --json
contains "$(tr -d ' \n' <<<"$out")" '"unread_variables":["ODC_TRANSPORT"]'
expect 0 "$odc" info
same "$err" ""

# ---- odc run: the command line ----
for wrong in 0 -3 two 1.5 3x 99999999999999999999 ''; do
    expect 2 "$odc" run -n "$wrong" true
    same "$err" "odc: --ranks: \"$wrong\" is not a whole number from 1 to 1048576"
done
expect 2 "$odc" run true
expect 2 "$odc" run -n 2
contains "$err" "no command"
expect 2 "$odc" run -n 2 --colour true
contains "$err" "--colour"
expect 127 "$odc" run -n 4 -- "$work/nowhere"
same "$(printf '%s\n' "$err" | wc -l)" 1
contains "$err" "cannot start '$work/nowhere'"
printf 'x' >"$work/plain"
expect 126 "$odc" run -n 2 "$work/plain"

# ---- odc run: ranks, environment, arguments ----
expect 0 "$odc" run -n 3 -- sh -c 'echo "$ODC_RANK/$ODC_SIZE/$ODC_JOB"'
job=$(printf '%s\n' "$out" | sed -n 's|.*/3/||p' | sort -u)
case $job in
*[!0-9a-f]*) fail "ODC_JOB is '$job'" ;;
esac
same "${#job}" 32
same "$(printf '%s\n' "$out" | sort)" "$(printf '[0] 0/3/%s\n[1] 1/3/%s\n[2] 2/3/%s' "$job" "$job" "$job")"
expect 0 "$odc" run -n 1 -- sh -c 'echo "$ODC_JOB"'
[ "$out" != "[0] $job" ] || fail "two jobs have one name"
# torch.distributed's variables: the place is always odc run's, where to meet the user's if given.
expect 0 env -u OMP_NUM_THREADS "$odc" run -n 2 -- sh -c 'echo "$OMP_NUM_THREADS"'
same "$(sort <<<"$out")" "$(printf '[0] 1\n[1] 1')"
expect 0 env -u OMP_NUM_THREADS "$odc" run -n 1 -- sh -c 'echo "${OMP_NUM_THREADS-unset}"'
same "$out" "[0] unset"
expect 0 env OMP_NUM_THREADS=3 "$odc" run -n 2 -- sh -c 'echo "$OMP_NUM_THREADS"'
same "$(sort <<<"$out")" "$(printf '[0] 3\n[1] 3')"
show='echo "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT"'
expect 0 env -u RANK -u MASTER_ADDR -u MASTER_PORT WORLD_SIZE=9 LOCAL_RANK=7 "$odc" run -n 2 -- sh -c "$show"
port=$(sed -n 's/^\[0\] .*://p' <<<"$out")
same "$(sort <<<"$out")" "$(printf '[0] 0/2 0/2 127.0.0.1:%s\n[1] 1/2 1/2 127.0.0.1:%s' "$port" "$port")"
[ "$port" -gt 0 ] || fail "MASTER_PORT is '$port'"
expect 0 env -u RANK MASTER_ADDR=there MASTER_PORT=12 "$odc" run -n 1 -- sh -c "$show"
same "$out" "[0] 0/1 0/1 there:12"
expect 0 env RANK=3 MASTER_ADDR=there MASTER_PORT=12 "$odc" run -n 1 -- sh -c "$show"
contains "$out" "[0] 0/1 0/1 127.0.0.1:"
expect 0 "$odc" run -n 1 printf '%s,' -n 2 -- --json
same "$out" "[0] -n,2,--,--json,"
expect 0 "$odc" run -n 2 -- cat </dev/null
printf 'for rank 0\n' | timeout 30 "$odc" run -n 2 cat >"$work/out"
same "$(cat "$work/out")" "[0] for rank 0"

# ---- odc run: output ----
expect 0 "$odc" run -n 2 -- sh -c 'echo out; echo err >&2'
same "$(printf '%s\n' "$out" | sort)" "$(printf '[0] out\n[1] out')"
same "$(printf '%s\n' "$err" | sort)" "$(printf '[0] err\n[1] err')"
expect 0 "$odc" run -n 1 -- printf 'unterminated'
same "$out" "[0] unterminated"
# Two ranks write 20,000 lines in pieces to one file; none may be split.
timeout 60 "$odc" run -n 2 -- sh -c 'i=0; while [ $i -lt 10000 ]; do printf abc; printf "def %05d\n" $i; i=$((i+1)); done' \
    >"$work/out" 2>&1 || fail "many lines"
same "$(grep -cE '^\[[01]\] abcdef [0-9]{5}$' "$work/out")" 20000
same "$(wc -l <"$work/out")" 20000
# A line of 1 MB arrives complete, in prefixed parts: it is not held in memory.
expect 0 "$odc" run -n 1 -- sh -c 'head -c 1000000 /dev/zero | tr "\0" x'
same "$(printf '%s' "$out" | tr -cd x | wc -c)" 1000000
same "$(printf '%s\n' "$out" | grep -c '^\[0\] x')" 16
# ... and one of 64 KiB in one part: its newline comes with the next read.
{ head -c 65536 /dev/zero | tr '\0' x && echo; } >"$work/line"
expect 0 "$odc" run -n 1 cat "$work/line"
same "$(printf '%s\n' "$out" | cut -c 1-5)" "[0] x"
# A failed write is reported once, and the exit status is not 0.
if [ -w /dev/full ]; then
    for command in 'echo out' 'printf out' 'echo out; echo out'; do
        expect 1 sh -c "exec '$odc' run -n 2 -- sh -c '$command' >/dev/full"
        same "$err" "odc: cannot write the output: No space left on device"
    done
    expect 1 sh -c "exec '$odc' run -n 2 echo out >/dev/full 2>&1"
    expect 7 sh -c "exec '$odc' run -n 1 -- sh -c 'echo out; exit 7' >/dev/full"
fi
# Each rank has two pipes: more than the soft limit allows, which the ranks keep, but not more than the hard one.
expect 0 bash -c "ulimit -Sn 32; echo in | '$odc' run -n 20 -- sh -c 'cat; ulimit -Sn'"
same "$(printf '%s\n' "$out" | grep -cE '^\[[0-9]+\] 32$')" 20
same "$(printf '%s\n' "$out" | grep in)" "[0] in"
expect 1 bash -c "ulimit -n 32; exec '$odc' run -n 20 -- sh -c 'echo started >>\"$work/started\"'"
same "$(printf '%s\n' "$err" | sed -E 's/ need [0-9]+ / need N /')" \
    "odc: 20 ranks need N open files, but 'ulimit -n' can be raised to 32 at most; start fewer ranks, or have the hard limit raised"
[ ! -e "$work/started" ] || fail "ranks were started beyond 'ulimit -n'"
# A reader that closes the pipe ends the job as it would end one program.
timeout 30 "$odc" run -n 2 -- yes 2>"$work/err" | head -n 1 >"$work/out"
[ "${PIPESTATUS[0]}" -ne 124 ] || fail "odc run outlived its reader"

# ... and one that closes it while the last output is written does not change the status.
{
    timeout 30 "$odc" run -n 1 -- sh -c 'yes "" | head -n 100000; echo >"$0"; exit 7' "$work/wrote" 2>/dev/null
    echo $? >"$work/status"
} | wait_for_lines "$work/wrote" 1
same "$(cat "$work/status")" 7

# ---- odc run: failures ----
# The others end when rank 1 has been waited for.
until_waited_for='until [ -s "$0" ] && ! kill -0 "$(cat "$0")" 2>/dev/null; do sleep 0.05; done'
expect 7 "$odc" run -n 3 -- sh -c '[ $ODC_RANK != 1 ] || { echo $$ >"$0"; exit 7; }
    '"$until_waited_for"'; exit 9' "$work/first"
contains "$err" "rank 1 exited with status 7"
expect 137 "$odc" run -n 2 -- sh -c '[ $ODC_RANK != 1 ] || kill -KILL $$'
contains "$err" "rank 1 was killed by signal 9"
# Equal ends are told in one line.
expect 1 "$odc" run -n 5 -- sh -c 'exit 1'
[[ $err =~ ^"odc: ranks 0-4 exited with status 1, rank "[0-4]" first"$ ]] || fail "five equal failures: $err"
expect 1 "$odc" run -n 5 -- sh -c '[ $ODC_RANK = 1 ] || { echo mine >&2; exit 1; }'
[[ $(grep '^odc' <<<"$err") =~ ^"odc: ranks 0, 2-4 exited with status 1, rank "[0234]" first"$ ]] || fail "four of five: $err"
same "$(grep -c '\] mine$' <<<"$err")" 4
# The others have 2 s to report errors...
expect 1 "$odc" run -n 2 -- sh -c '[ $ODC_RANK != 1 ] || { echo $$ >"$0"; exit 1; }
    '"$until_waited_for"'; echo "I saw it"' "$work/second"
contains "$out" "[0] I saw it"
# ... then SIGTERM ...
begin=$(now_ms)
expect 3 "$odc" run -n 2 -- sh -c '[ $ODC_RANK = 1 ] && exit 3; trap "echo told; exit 0" TERM; sleep '"$unique"' & wait'
contains "$out" "[0] told"
took=$(($(now_ms) - begin))
echo "rank 0 had told of its SIGTERM after $took ms"
[ "$took" -ge 1900 ] || fail "SIGTERM came after $took ms"
same "$(head -n 2 "$work/err")" "$(printf 'odc: rank 1 exited with status 3\nodc: ending rank 0')"
nothing_left "sleep $unique"
# ... only one ...
if command -v python3 >/dev/null; then
    cat >"$work/count.py" <<'RANK'
import os, signal, sys, time
ready = sys.argv[1]
if os.environ["ODC_RANK"] == "0":
    while not os.path.exists(ready) or len(open(ready).read()) < 3:
        time.sleep(0.05)
    sys.exit(3)
read, write = os.pipe()
os.set_blocking(write, False)
signal.signal(signal.SIGTERM, lambda *_: None)
signal.set_wakeup_fd(write)  # a byte for each signal
with open(ready, "a") as file:
    file.write("x")
signal.pause()
time.sleep(0.2)
print(len(os.read(read, 100)))
RANK
    expect 3 "$odc" run -n 4 -- python3 "$work/count.py" "$work/counting"
    same "$(printf '%s\n' "$out" | sort)" "$(printf '[1] 1\n[2] 1\n[3] 1')"
fi
# ... then SIGKILL.
begin=$(now_ms)
expect 4 "$odc" run -n 2 -- sh -c '[ $ODC_RANK = 1 ] && exit 4; trap "" TERM; while :; do sleep '"$unique"'; done'
took=$(($(now_ms) - begin))
echo "rank 0 had ended by SIGKILL after $took ms"
[ "$took" -ge 3900 ] || fail "SIGKILL came after $took ms"
same "$err" "$(printf 'odc: rank 1 exited with status 4\nodc: ending rank 0\n%s' \
    'odc: killing rank 0, which did not end at SIGTERM')"
nothing_left "sleep $unique"

# ---- odc run: nothing is left running ----
# A grandchild that holds the pipe does not delay the end: it gets SIGTERM.
begin=$(now_ms)
expect 0 "$odc" run -n 2 -- sh -c "sleep $unique & echo done"
echo "a job with grandchildren had ended after $(($(now_ms) - begin)) ms"
same "$err" ""
nothing_left "sleep $unique"
cat >"$work/grandchild.sh" <<GRANDCHILD
mkdir "\$1.\$ODC_RANK"
exec sleep $unique
GRANDCHILD
runs='while [ ! -d "$1.$ODC_RANK" ]; do sleep 0.01; done'
away="setsid sh \"\$0\" \"\$1\" & $runs"
expect 0 "$odc" run -n 1 -- sh -c "$away" "$work/grandchild.sh" "$work/away"
nothing_left "sleep $unique"
expect 5 "$odc" run -n 2 -- sh -c "(trap '' TERM; sh \"\$0\" \"\$1\"; :) & $runs; exit 5" "$work/grandchild.sh" "$work/deaf"
nothing_left "sleep $unique"
# A child of the program that became odc run by exec does not belong to the job.
expect 0 sh -c "sleep 1$unique >/dev/null 2>&1 & echo \$! >'$work/sidecar'
    exec '$odc' run -n 1 -- sh -c '$away' '$work/grandchild.sh' '$work/beside'"
nothing_left "sleep $unique"
kill "$(cat "$work/sidecar")" || fail "odc run ended a process that it had not started"
(timeout 30 "$odc" run -n 2 -- sh -c "echo up; sleep $unique & wait" >"$work/up" 2>&1) 2>/dev/null &
wait_for_lines "$work/up" 2
supervisor=$(pgrep -f -- "$odc run -n 2 -- sh -c echo up; sleep $unique" | while read -r pid; do
    [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = odc ] && echo "$pid"; done | head -n 1)
kill -KILL "$supervisor"
wait 2>/dev/null
nothing_left "sleep $unique"

# ---- odc run: signals ----
for signal in INT TERM HUP USR1; do
    case $signal in INT) number=2 ;; TERM) number=15 ;; HUP) number=1 ;; USR1) number=10 ;; esac
    # Job control gives the job a process group of its own, all of whose members get the signal, as at a terminal.
    for target in process group; do
        rm -f "$work"/got.*
        cat >"$work/rank.sh" <<RANK
trap 'echo $signal >>"$work/got.\$ODC_RANK"' $signal
echo up >>"$work/ready"
i=0
while [ \$i -lt 600 ] && [ ! -e "$work/got.\$ODC_RANK" ]; do sleep 0.05; i=\$((i + 1)); done
sleep 0.2 # a second signal would arrive by then
RANK
        rm -f "$work/ready"
        set -m
        "$odc" run -n 2 -- sh "$work/rank.sh" >"$work/out" 2>&1 &
        pid=$!
        set +m
        wait_for_lines "$work/ready" 2
        if [ "$target" = group ]; then kill -$signal -- -$pid; else kill -$signal $pid; fi
        wait $pid
        same "$?" 0
        for rank in 0 1; do
            same "$(cat "$work/got.$rank" 2>/dev/null)" "$signal"
        done
    done
    set -m
    "$odc" run -n 2 -- sh -c "echo up; sleep $unique & wait" >"$work/up" 2>"$work/err" &
    pid=$!
    set +m
    wait_for_lines "$work/up" 2
    kill -$signal $pid
    wait $pid
    same "$?" $((128 + number))
    nothing_left "sleep $unique"
done

if [ "$failures" -ne 0 ]; then
    echo "$failures checks failed" >&2
    exit 1
fi
echo "odc run and odc info behave as expected"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# apart.sh R COMMAND...: runs COMMAND as ranks 0..R-1 of which each is a host of its own, on this machine: they reach each
# other through the loopback interface only. Ends with the status of the first that failed, and nothing is left.
set -u
ranks=$1
shift
# A port that is bound, and by REUSEADDR still free for rank 0; until we end.
coproc holder {
    exec python3 -c '
import socket, sys
held = socket.socket()
held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
held.bind(("127.0.0.1", 0))
print(held.getsockname()[1], flush=True)
sys.stdin.read()'
}
read -r port <&"${holder[0]}"
ODC_SECRET=$(od -An -N16 -tx1 /dev/urandom | tr -d ' ')
ODC_JOB=$(od -An -N16 -tx1 /dev/urandom | tr -d ' ')
export ODC_SIZE=$ranks ODC_RENDEZVOUS=127.0.0.1:$port ODC_INTERFACE=lo ODC_SECRET ODC_JOB
declare -A pids=()
trap 'kill "$holder_PID" "${!pids[@]}" 2>/dev/null' EXIT
for ((rank = 0; rank < ranks; rank++)); do
    ODC_RANK=$rank ODC_HOST_ID="$ODC_JOB $rank" "$@" <&0 &
    pids[$!]=$rank
done
first=0
while [ ${#pids[@]} -gt 0 ]; do
    wait -n -p pid "${!pids[@]}"
    status=$?
    unset "pids[$pid]"
    [ "$first" -ne 0 ] || first=$status
done
exit "$first"

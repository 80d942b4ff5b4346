#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs an MPI program with a rank, or $RANKS_PER_HOST, on each of the hosts made by tests/harness/hosts.sh; Open MPI only. With a
# rank a host shared memory is disabled, which one-sided operations would use even with the tcp transport alone.
# Called by `hosts.sh N -- mpi_hosts.sh COMMAND...`.
set -eu

here=$(realpath "$0")
# Open MPI takes hosts with equal host names for one.
named='hostname "odc-host$1" && shift && exec "$@"'
if [ "${1-}" = --agent ]; then # mpirun calls this instead of ssh: mpi_hosts.sh --agent ADDRESS COMMAND...
    k=0
    while [ "$("$HOSTS" address $k)" != "$2" ]; do k=$((k + 1)); done
    exec "$HOSTS" on $k unshare --uts sh -c "$named" sh $k sh -c "${*:3}"
fi
list=
slots=${RANKS_PER_HOST:-1}
transports=tcp,self
[ "$slots" -eq 1 ] || transports+=,vader
for ((k = 0; k < $("$HOSTS" count); k++)); do
    list+=${list:+,}$("$HOSTS" address $k):$slots
done
exec "$HOSTS" on 0 unshare --uts sh -c "$named" sh 0 mpirun --allow-run-as-root --bind-to none --host "$list" \
    --mca plm_rsh_agent "$here --agent" --mca plm_rsh_no_tree_spawn 1 --mca mpi_yield_when_idle 1 \
    --mca pml ob1 --mca osc pt2pt --mca btl "$transports" --mca btl_tcp_if_include net0 --mca oob_tcp_if_include net0 "$@"

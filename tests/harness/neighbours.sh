# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced: programs that are busy on every processor beside what is tested.
neighbours=()

start_neighbours() {
    for ((i = 0; i < $(nproc); ++i)); do
        while :; do :; done &
        neighbours+=($!)
    done
}

stop_neighbours() {
    kill "${neighbours[@]}" 2>/dev/null || true
    wait "${neighbours[@]}" 2>/dev/null || true
    neighbours=()
}

# Whether they get most of the processors of /proc/stat, which a quota or another view of it can prevent.
neighbours_are_busy() {
    local try
    for try in 1 2 3; do
        python3 - <<'PYTHON' && return
import sys, time

def ticks():
    times = [int(time) for time in open("/proc/stat").readline().split()[1:9]]
    return sum(times), times[3] + times[4]

before = ticks()
time.sleep(0.3)
every, idle = (after - first for first, after in zip(before, ticks()))
sys.exit(0 if every > 0 and idle / every < 0.3 else 1)
PYTHON
    done
    echo "beside other programs: skipped, as they cannot use the processors of /proc/stat (try $try)"
    return 1
}

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A shard larger than what is left in a control group, or in one of its parents, is refused with both numbers; page cache that
# can be reclaimed counts as free. Ranks that register at the same moment do not exceed the limit together. Small
# registrations share a look at the memory. The node cache takes a part of what is free as a shard is registered. Makes two
# groups of its own and removes them.
set -u
: "${ODC_BUILD_DIR:?the build}"

limit=$((96 << 20))
own=$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)
if [ -n "$own" ]; then
    mount=/sys/fs/cgroup/memory limit_file=memory.limit_in_bytes
else
    mount=/sys/fs/cgroup own=$(sed -n 's/^0:://p' /proc/self/cgroup) limit_file=memory.max
fi
group=
for parent in "$mount$own" "$mount"; do
    if mkdir "$parent/odc-test-$$" 2>/dev/null; then
        group=$parent/odc-test-$$
        break
    fi
done
scratch=$(mktemp -d)
# A member that ended may be counted for a moment longer.
remove() {
    rm -rf "$scratch"
    for path in "$group/inner" "$group"; do
        for _ in $(seq 100); do
            [ -z "$group" ] || [ ! -d "$path" ] || rmdir "$path" 2>/dev/null || { sleep 0.1; continue; }
            break
        done
    done
}
trap remove EXIT
if [ -z "$group" ] || ! echo $limit >"$group/$limit_file" 2>/dev/null || ! mkdir "$group/inner"; then
    echo "control groups cannot be made or limited here"
    exit 77
fi

# The parent is limited; the process is in the child, which is not.
inside() {
    bash -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group/inner" "$@"
}
if ! inside true; then
    echo "a process cannot be put into a control group here"
    exit 77
fi

failures=0
expect() { # STATUS WORDS COMMAND...
    local status=$1 text=$2 said
    shift 2
    said=$("$@" 2>&1)
    if [ $? -ne "$status" ] || ! grep -qE "$text" <<<"$said"; then
        echo "not as expected ($status, $text): $said" >&2
        failures=$((failures + 1))
    fi
}

register=$ODC_BUILD_DIR/tests/faults/register
expect 0 "^registered" inside "$register" $((60 << 20))
expect 1 "needs $((200 << 20)) bytes, but only [0-9]{8} bytes of memory are available" inside "$register" $((200 << 20))
head -c $((200 << 20)) /dev/zero >"$scratch/file"
expect 0 "^registered" inside bash -c 'cat "$0" >/dev/null; exec "$@"' "$scratch/file" "$register" $((60 << 20))

# reads SHARDS BYTES: how often the kernel is read in so many registrations.
reads() {
    inside "$register" "$2" 1 "$1" | sed -n 's/^registered; calls of read(): //p'
}
echo $((200 << 20)) >"$group/$limit_file"
if [ "$(reads 1 4096)" -gt 0 ]; then
    large=$(reads 50 $((1 << 20))) small=$(reads 200 $((16 << 10)))
    echo "calls of read(): $large in 50 registrations of 1 MiB, $small in 200 of 16 KiB"
    if [ "$small" -gt "$large" ]; then
        echo "small registrations do not share looks at the available memory" >&2
        failures=$((failures + 1))
    fi
else
    echo "left out: how often memory is looked at, as the kernel counts no calls"
fi

# together RANKS BYTES LIMIT: some register, the others are refused, and none is killed.
together() {
    local said registered refused
    echo "$3" >"$group/$limit_file"
    said=$(inside "$register" "$2" "$1" 2>&1)
    registered=$(grep -c "^registered" <<<"$said")
    refused=$(grep -cE "needs $2 bytes, but (after [0-9]+ of them )?only [0-9]+ bytes of memory are available" <<<"$said")
    if [ $((registered + refused)) -ne "$1" ] || [ "$registered" -eq 0 ] || [ "$refused" -eq 0 ]; then
        echo "$1 ranks of $2 bytes below $3: $registered registered, $refused were refused: $said" >&2
        failures=$((failures + 1))
    fi
}
for _ in 1 2 3; do
    together 8 $((60 << 20)) 400000000
    together 4 $((97 << 20)) 400000000
    together 2 $((300 << 20)) 400000000
done
# The two ranks of a host take at most an eighth each for entries: some 180 MB as they join, 70 MB after 900 MB have been taken.
echo 1600000000 >"$group/$limit_file"
expect 0 "^.  PASSED  . 1 test" inside "$ODC_BUILD_DIR/tests/faults/taken_memory" 90000000 1 1
expect 0 "^.  PASSED  . 1 test" inside "$ODC_BUILD_DIR/tests/faults/taken_memory" 90000000 225000000 0
# More than each rank alone finds plenty at its first look.
if [ "$(awk '/^MemAvailable/ {print $2}' /proc/meminfo)" -gt $((8 << 20)) ]; then
    together 8 $((1 << 30)) $((6 << 30))
else
    echo "left out: eight ranks below 6 GiB, as this machine has less than 8 GiB available"
fi
[ "$failures" -eq 0 ]

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ODC_LOG: lines on standard error, of each rank; none where all goes well and it is not set; a wrong level is refused.
set -u

odc=${ODC:?the path of the odc command}
programs=${ODC_BUILD_DIR:?the build directory}/tests/cli
# shellcheck source-path=SCRIPTDIR source=../harness/shell_checks.sh
. "${ODC_SOURCE_DIR:?the folder of the sources}/tests/harness/shell_checks.sh"

unset ODC_LOG
expect 0 "$odc" run -n 2 "$programs/join"
same "$err" ""

expect 0 env ODC_LOG=info "$odc" run -n 2 "$programs/join"
for rank in 0 1; do
    contains "$err" " odc info rank=$rank/2 host="
done
contains "$err" " minibatch=0: reaches the host memory of 1 rank of this host by shm, direct"
contains "$err" " minibatch=0: has joined after "
same "$(grep -c ' odc debug ' <<<"$err")" 0
lines=$(grep -cE '^\[([01])\] [^ ]+Z odc info rank=\1/2 host=[^ ]+ pid=[0-9]+ minibatch=[0-9]+: ' <<<"$err")
same "$lines" "$(grep -c . <<<"$err")"

expect 0 env ODC_LOG=debug "$odc" run -n 2 "$programs/join"
contains "$err" " minibatch=0: syncs; rank "

# A line of a process that is no rank yet says where it is; the host is as errors name it.
line='^[^ ]+Z odc info host=somewhere pid=[0-9]+: cannot join, wrong argument: ODC_RANK="5" is wrong: '
expect 1 env ODC_LOG=trace ODC_SIZE=2 ODC_RANK=5 ODC_JOB=q ODC_HOST_ID=somewhere "$programs/join"
same "$(grep -cE "$line" <<<"$err")" 1
expect 1 env ODC_LOG=trace ODC_SIZE=2 ODC_RANK=5 ODC_HOST_ID="$(printf '%070d' 0)" "$programs/join"
same "$(grep -cE "Z odc info host=[^ ]+ pid=[0-9]+: cannot join, wrong argument: ODC_HOST_ID=" <<<"$err")" 1

expect 1 env ODC_LOG=loud "$odc" run -n 2 "$programs/join"
contains "$err" "ODC_LOG=\"loud\" is wrong: it must be error, warn, info, debug or trace"

expect 0 env ODC_LOG=trace "$odc" info --settings
contains "$out" "ODC_LOG"

[ "$failures" -eq 0 ]

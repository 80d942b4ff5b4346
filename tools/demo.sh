#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh Debian or Ubuntu machine to the main job: installs what is missing (and lists it), builds, and trains a small
# decoder on Python's own library in two experiments. Prints for each its progress, then a verdict, a table of the schedules, and a
# table of what each step (transport, schedule, plan) gains; bindings/python/examples/train/train.py shows them. Pages with
# pictures, and numbers, are in report/.
#
# usage: tools/demo.sh [grpo] [--quick] | tools/demo.sh lengths [OPTION...]
#   lengths   only what ODC gains on sequence lengths, without torch: python -m libodc demo, with its options:
#             --lengths FILE, --picture FILE, --seconds N, --help, and those of odc replay (docs/command.md)
#   grpo      reinforcement learning of a small decoder instead: bindings/python/examples/grpo/grpo.py, with real compute and with
#             its updates on emulated devices
#   --quick   a quarter of the minibatches: the first table after a minute of training
set -eu
caller=$PWD
case $* in
'lengths --help' | 'lengths -h') set -- --help ;; # libodc, which has the whole help of lengths, may not be installed yet
esac
# shellcheck source-path=SCRIPTDIR source=../tests/harness/usage.sh
. "$(dirname "$0")/../tests/harness/usage.sh"
cd "$(dirname "$0")/.."

compute=()
emulated=()
grpo=()
updates=(--rollouts 5)
case $* in
'' | grpo) ;;
lengths | 'lengths '*)
    shift
    bash tests/install.sh demo
    echo "Into build/python: libodc, which is compiled in a minute or two"
    bash tests/venv.sh
    python=$PWD/build/python/bin/python
    cd "$caller" # of the files that options name
    exec "$python" -m libodc demo "$@"
    ;;
--quick | 'grpo --quick')
    compute=(--rounds 3)
    emulated=(--minibatches 3 --seconds 45)
    grpo=(--rollouts 10)
    updates=(--rollouts 3)
    ;;
*) wrong_usage ;;
esac

bash tests/install.sh demo
echo "Into build/python: torch (3 GB with CUDA, 200 MB for CPUs only: pip's settings or ODC_TORCH_INDEX say which), matplotlib"
echo "(30 MB), and libodc, which is compiled in a minute or two."
bash tests/venv.sh torch pictures

cores=$(nproc)
ranks=$((cores < 8 ? cores : 8))
start() {
    local ranks=$1 report=$2
    shift 2
    printf '\n==== %s, %s ranks\n' "$report" "$ranks"
    build/python/bin/odc run -n "$ranks" build/python/bin/python "$@" --report "report/$report"
}
run() {
    local ranks=$1 experiment=$2
    shift 2
    start "$ranks" "$experiment" bindings/python/examples/train/train.py "$experiment" "$@"
}
if [ "${1-}" = grpo ]; then
    start "$ranks" grpo bindings/python/examples/grpo/grpo.py "${grpo[@]}"
    start 8 grpo-emulated bindings/python/examples/grpo/grpo.py --emulate 3 "${updates[@]}"
    printf '\nSee report/grpo/index.html and report/grpo-emulated/index.html; the numbers are in summary.json beside them.\n'
    exit
fi
run "$ranks" compute "${compute[@]}"
run 8 emulated --lengths tests/data/long-lengths.txt "${emulated[@]}"
printf '\nSee report/compute/index.html and report/emulated/index.html; the numbers are in summary.json beside them.\n'

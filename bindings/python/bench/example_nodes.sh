#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the training example on two hosts of this machine, of two ranks each, over a fast link and over one of RATE (default 170mbit),
# and prints for each arm the share of the network's time that is hidden. Takes about 5 minutes.
#
# usage: bindings/python/bench/example_nodes.sh [RATE]
set -eu
# shellcheck source-path=SCRIPTDIR source=../../../tests/harness/usage.sh
. "$(dirname "$0")/../../../tests/harness/usage.sh"
takes 0 1 "$@"
cd "$(dirname "$0")/../../.."
export ODC_BENCH_RATE=${1-170mbit}
minibatches=5
reports=$(mktemp -d)
trap 'rm -rf "$reports"' EXIT

# example REPORT OPTION...: with these options of hosts.sh.
example() {
    local report=$1
    shift
    bash tests/harness/hosts.sh 2 "$@" -- bash tests/harness/hosts.sh ranks 4 build/python/bin/python \
        bindings/python/examples/train/train.py compute --rounds "$minibatches" --turn 1 --minibatch 4 --width 256 --report "$report"
}
example "$reports/fast"
example "$reports/slow" --rate "$ODC_BENCH_RATE"
build/python/bin/python bindings/python/bench/example_nodes.py "$minibatches" "$reports"/{fast,slow}/summary.json

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs fsdp2_hosts.py, or another PROGRAM of this folder with RANKS ranks, on two hosts of this machine. The program slows their link
# to RATE (default 1gbit) and lets it run in turns.
#
# usage: bindings/python/bench/fsdp2_hosts.sh [RATE [RANKS PROGRAM]]
set -eu
# shellcheck source-path=SCRIPTDIR source=../../../tests/harness/usage.sh
. "$(dirname "$0")/../../../tests/harness/usage.sh"
takes 0 3 "$@"
cd "$(dirname "$0")/../../.."
export ODC_BENCH_RATE=${1-1gbit} GLOO_SOCKET_IFNAME=net0 PYTHONPATH=$PWD/bindings/python/examples/train # traffic
# shellcheck disable=SC2016 # the inner shell's
exec bash tests/harness/hosts.sh 2 -- bash -euc \
    'exec "$HOSTS" ranks "$1" build/python/bin/python "bindings/python/bench/$2"' sh "${2-2}" "${3-fsdp2_hosts.py}"

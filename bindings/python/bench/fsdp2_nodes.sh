#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs fsdp2_nodes.py on two hosts of this machine, of two ranks each, whose slow link has RATE (default 1gbit).
#
# usage: bindings/python/bench/fsdp2_nodes.sh [RATE]
# shellcheck source-path=SCRIPTDIR source=../../../tests/harness/usage.sh
. "$(dirname "$0")/../../../tests/harness/usage.sh"
takes 0 1 "$@"
exec bash "$(dirname "$0")/fsdp2_hosts.sh" "${1-1gbit}" 4 fsdp2_nodes.py

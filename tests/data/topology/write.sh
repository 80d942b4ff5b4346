#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Writes the recorded machines of this folder and what `odc topo` prints of each.
#
# usage: tests/data/topology/write.sh PATH-OF-ODC
set -eu
# shellcheck source-path=SCRIPTDIR source=../../harness/usage.sh
. "$(dirname "$0")/../../harness/usage.sh"
takes 1 1 "$@"
odc=$(realpath "$1")
cd "$(dirname "$0")"
python3 machines.py
for recorded in *.xml; do
    env -u ODC_TRANSPORTS -u ODC_INTERFACE -u ODC_PROVIDER -u ODC_REQUIRE "$odc" topo --xml "$recorded" >"${recorded%.xml}.txt"
done

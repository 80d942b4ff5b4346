#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Draws docs/schedules.svg, the README's picture: three minibatches of real sequence lengths on four ranks in both schedules
# (with fewer there is no verdict, and so no figure in its heading).
#
# usage: docs/schedules.sh [BUILD]
set -eu
# shellcheck source-path=SCRIPTDIR source=../tests/harness/usage.sh
. "$(dirname "$0")/../tests/harness/usage.sh"
takes 0 1 "$@"
cd "$(dirname "$0")/.."
exec "${1:-build/release}/tools/odc" replay --ranks 4 --minibatch 4 --minibatches 3 \
    --seconds 6 --timeline docs/schedules.svg

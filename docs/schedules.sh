#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Draws docs/schedules.svg, the README's picture: one minibatch of real sequence lengths on four ranks in both schedules.
# usage: docs/schedules.sh [BUILD]
set -eu
cd "$(dirname "$0")/.."
exec "${1:-build/release}/tools/odc" replay --ranks 4 --minibatch 4 --minibatches 1 \
    --seconds 2 --timeline docs/schedules.svg

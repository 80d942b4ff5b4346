#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh Debian or Ubuntu machine to the main job: installs what is missing (and says what), builds, and replays
# the embedded sequence lengths on 8 ranks with both schedules. The pictures land in report/.
set -eu
cd "$(dirname "$0")/.."

bash tests/install.sh build
cmake --preset release -DODC_TOOLS=ON -DODC_TESTS=OFF
cmake --build --preset release
mkdir -p report
build/release/tools/odc replay --lengths tests/data/stdlib-lengths.txt --model 7b --ranks 8 --minibatch 8 \
    --timeline report/timeline.svg --trace report/trace.json "$@"
echo "See report/timeline.svg in a browser and report/trace.json at ui.perfetto.dev."

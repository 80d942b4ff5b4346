#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh Debian or Ubuntu machine to the main job: installs what is missing (and lists it), builds, makes a virtual
# environment in build/python, and trains a small decoder on Python's own library in two experiments. Prints tables; pictures
# and numbers are in report/.
set -eu
cd "$(dirname "$0")/.."

bash tests/install.sh demo
cmake --preset release -DODC_TOOLS=ON -DODC_TESTS=OFF
cmake --build --preset release
echo "Installing torch, matplotlib and the package libodc into build/python"
bash tests/venv.sh torch pictures

cores=$(nproc)
run() {
    local ranks=$1 experiment=$2
    shift 2
    printf '\n==== %s, %s ranks\n' "$experiment" "$ranks"
    build/release/tools/odc run -n "$ranks" build/python/bin/python bindings/python/examples/train/train.py "$experiment" \
        --report "report/$experiment" "$@"
}
run $((cores < 8 ? cores : 8)) compute
run 8 emulated --lengths tests/data/long-lengths.txt
printf '\nSee report/compute/*.png and report/emulated/*.png; the numbers are in summary.json beside them.\n'

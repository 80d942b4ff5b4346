#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks libodc on NVIDIA GPUs: tests/hardware/run.sh [--multi] [--short] [STAGE...]; see README.md in this folder. From sources
# it runs what pack.sh has put into build/gpu. RESULTS names the folder of results, PYTHON the interpreter; after RUN_SECONDS,
# if set, it ends by itself and lists what it did not begin.
set -eu

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tree=$(cd "$here/../.." && pwd)
if [ ! -e "$tree/made_of.json" ]; then
    packed=$tree/build/gpu
    if [ ! -e "$packed/made_of.json" ]; then
        echo "run.sh: $packed is not there: tests/hardware/pack.sh makes it of a build" >&2
        exit 2
    fi
    [ -n "${RESULTS:-}" ] || export RESULTS="$here/results" RESULTS_ARE_THE_PROJECTS=1
    exec bash "$packed/tests/hardware/run.sh" "$@"
fi
RESULTS=$(realpath -m "${RESULTS:-$tree/results}")
export RESULTS PATH="$tree/bin:$PATH:/usr/local/cuda/bin" ODC_LIBRARY="$tree/lib/libodc.so.0"
export PYTHONPATH="$tree/bindings/python:$here/plugin${PYTHONPATH:+:$PYTHONPATH}"
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX="${PYTHONPYCACHEPREFIX:-$tree/bytecode}"
exec "${PYTHON:-python3}" "$here/run.py" "$@"

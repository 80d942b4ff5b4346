#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Python package into a virtual environment, as a user would, and checks and tests it there. Ends with 77
# where that cannot be done. The last line is pytest's.
set -eu
cd "$(dirname "$0")/.."

bash tests/venv.sh checks pictures
# Without torch, or what builds on it, their tests skip and say so.
bash tests/venv.sh torch libraries torchtitan || [ $? -eq 77 ]
bin=$PWD/build/python/bin
cd bindings/python
"$bin/ruff" check . ../../packaging
"$bin/ruff" format --check . ../../packaging
if "$bin/python" -c 'import torch' 2>/dev/null; then
    "$bin/mypy"
else
    "$bin/mypy" --exclude odc/torch
fi
# Not python -m pytest, which would import the sources instead of what was installed.
status=0
"$bin/pytest" -q -rs || status=$?
if "$bin/python" -c 'import torch' 2>/dev/null; then
    echo "FSDP2 with every rank on a host of its own"
    ODC_TEST_HOSTS=99 "$bin/pytest" -q tests/test_fsdp2_{equal,gradients,deaths}.py || status=$?
fi
exit $status

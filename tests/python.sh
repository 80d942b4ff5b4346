#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Python package into a virtual environment, as a user would, and checks and tests it there. Ends with 77
# where that cannot be done. The last line is pytest's.
set -eu
cd "$(dirname "$0")/.."

venv=build/python
if ! python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    echo "Python 3.10 or later with venv is needed (Debian: python3-venv)"
    exit 77
fi
[ -x $venv/bin/python ] || python3 -m venv $venv
if ! $venv/bin/pip install --quiet --disable-pip-version-check \
    'numpy==2.2.6' 'pytest==8.4.2' 'mypy==1.18.2' 'ruff==0.14.5' 'matplotlib==3.10.7' >build/pip.log 2>&1; then
    tail -n 1 build/pip.log
    exit 77
fi
# Elsewhere torch may be the build for CUDA, which is large. Without it the tests of odc.torch skip, and say so.
if ! $venv/bin/pip install --quiet --disable-pip-version-check 'torch==2.13.0' >build/pip.log 2>&1; then
    echo "torch 2.13.0 cannot be installed: $(tail -n 1 build/pip.log)"
elif ! $venv/bin/pip install --quiet --disable-pip-version-check 'transformers==5.23.0' 'accelerate==1.15.0' \
    >build/pip.log 2>&1; then
    echo "transformers and accelerate cannot be installed: $(tail -n 1 build/pip.log)"
fi
$venv/bin/pip install --quiet --disable-pip-version-check --force-reinstall --no-deps ./bindings/python
cd bindings/python
../../$venv/bin/ruff check .
../../$venv/bin/ruff format --check .
if ../../$venv/bin/python -c 'import torch' 2>/dev/null; then
    ../../$venv/bin/mypy
else
    ../../$venv/bin/mypy --exclude odc/torch
fi
# Not python -m pytest, which would import the sources instead of what was installed.
../../$venv/bin/pytest -q -rs

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Python package into a virtual environment as a user would, and checks and tests it there. Exits with 77 where
# that is impossible. The last line is pytest's.
#
# usage: tests/python.sh [quick | TEST...]
#   quick     the tests that need no torch
#   TEST...   files or tests of bindings/python/tests, such as tests/test_plan.py
set -eu
# shellcheck source-path=SCRIPTDIR source=harness/usage.sh
. "$(dirname "$0")/harness/usage.sh"
takes 0 $# "$@"
cd "$(dirname "$0")/.."

# shellcheck source=tests/harness/bytecode.sh
. tests/harness/bytecode.sh

bin=$PWD/build/python/bin
case ${1-} in
'')
    bash tests/venv.sh checks pictures
    # Without torch, or packages that build on it, their tests are skipped with the reason.
    bash tests/venv.sh torch libraries torchtitan verl || [ $? -eq 77 ]
    ;;
quick)
    bash tests/venv.sh checks
    cd bindings/python
    exec "$bin/pytest" -q -rfEs tests/test_{abi,claims,context,demo,exact,exact_sum,imports,log,packages,plan,readme,signals,stats,topology,gpu}.py
    ;;
*)
    bash tests/venv.sh checks pictures
    if (cd bindings/python && grep -q torch "${@%%::*}"); then
        bash tests/venv.sh torch libraries torchtitan verl || [ $? -eq 77 ]
    fi
    cd bindings/python
    exec "$bin/pytest" -rfEs "$@"
    ;;
esac
cd bindings/python
"$bin/ruff" check ../..
"$bin/ruff" format --check ../..
if "$bin/python" -c 'import torch' 2>/dev/null; then
    "$bin/mypy"
    "$bin/mypy" --ignore-missing-imports examples/train examples/grpo
else
    "$bin/mypy" --exclude libodc/torch
fi
# Not python -m pytest, which would import the sources instead of the installed package.
status=0
"$bin/pytest" -q -rfEs || status=$?
if "$bin/python" -c 'import torch' 2>/dev/null; then
    echo "FSDP2 with every rank on a host of its own"
    # Without what launchers start, which would be on one host again.
    ODC_TEST_HOSTS=99 FI_OFI_RXM_MSG_RX_SIZE=64 FI_OFI_RXM_BUFFER_SIZE=8192 \
        "$bin/pytest" -q tests/test_fsdp2_{equal,gradients,deaths}.py -k "not all_end_when_one_fails" || status=$?
    echo "FSDP2 with copies of parameters, and gradients beside the sums"
    # Without those that have trained in both ways.
    ODC_TEST_ATTACH=parameters=copy,gradients=copy \
        "$bin/pytest" -q tests/test_fsdp2_{configurations,types,checkpoint,tied,whole,given_up,jobs,lifetime}.py \
        tests/test_fsdp2_accelerate.py::test_the_page -k "not test_configuration and not test_compiled" || status=$?
fi
exit $status

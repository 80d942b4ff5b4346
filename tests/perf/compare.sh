#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares two results of run.sh by Google Benchmark's compare.py, which tests each difference (Mann-Whitney). Exits with
# 77 where compare.py or SciPy is missing.
#
# usage: tests/perf/compare.sh BEFORE.json AFTER.json [OPTION of compare.py...]
set -eu
# shellcheck source-path=SCRIPTDIR source=../harness/usage.sh
. "$(dirname "$0")/../harness/usage.sh"
takes 2 $# "$@"
before=$(realpath -m "$1")
after=$(realpath -m "$2")
shift 2
cd "$(dirname "$0")/../.."

python3 - "$before" "$after" <<'PYTHON'
import json
import sys


def names(path):
    try:
        with open(path, encoding="utf-8") as file:
            benchmarks = json.load(file)["benchmarks"]
        found = {each["name"] for each in benchmarks if each["real_time"] >= 0}
    except OSError as error:
        sys.exit(f"{path} cannot be read: {error.strerror}")
    except (ValueError, KeyError, TypeError):
        sys.exit(f"{path} is no result of Google Benchmark; write one with tests/perf/run.sh")
    if not found:
        sys.exit(f"{path} has no benchmarks; did its run end early?")
    return found


if not names(sys.argv[1]) & names(sys.argv[2]):
    sys.exit(f"{sys.argv[1]} and {sys.argv[2]} have no benchmark in common")
PYTHON

script=/usr/share/benchmark/compare.py
[ -e $script ] || { echo "$script was not found (Debian: libbenchmark-tools)"; exit 77; }
build/python/bin/python -c 'import scipy' 2>/dev/null || bash tests/venv.sh scipy || exit
exec build/python/bin/python $script --no-color benchmarks "$before" "$after" "$@"

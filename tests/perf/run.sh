#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds and runs the benchmarks of this folder, prints the results and writes them to RESULT.json. compare.sh compares two
# such files.
#
# usage: tests/perf/run.sh RESULT.json [OPTION of Google Benchmark, such as --benchmark_filter=^add/...]
set -eu
# shellcheck source-path=SCRIPTDIR source=../harness/usage.sh
. "$(dirname "$0")/../harness/usage.sh"
takes 1 $# "$@"
result=$(realpath -m "$1")
shift
cd "$(dirname "$0")/../.."

cmake --preset release -DODC_TESTS=ON >/dev/null
if ! cmake --build --preset release --target help | grep -q '^perf:'; then
    echo "Google Benchmark was not found (Debian: libbenchmark-dev)" >&2
    exit 1
fi
cmake --build --preset release --target perf
mkdir -p "$(dirname "$result")"
# In random order, so that a disturbance of the machine affects all of them.
build/release/tests/perf/perf --benchmark_out="$result" --benchmark_out_format=json --benchmark_repetitions=9 \
    --benchmark_min_time=0.02 --benchmark_enable_random_interleaving=true --benchmark_display_aggregates_only=true "$@"

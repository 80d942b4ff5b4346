# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# To be sourced by a table of `odc replay`, which has the arguments BUILD_DIRECTORY [SECONDS_OF_A_REPLAY].
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../harness/usage.sh
. "$(dirname "$0")/../harness/usage.sh"
takes 1 2 "$@"

odc=$1/tools/odc
seconds=${2:-90}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# row WORDS OPTION...: a row of three seeds' replays. $cells is Python that makes the list `cells` of their JSON objects, `runs`.
row() {
    for seed in 1 2 3; do
        "$odc" replay "${@:2}" --seed $seed --seconds "$seconds" --json >"$scratch/$seed" 2>/dev/null
    done
    python3 - "$1" "$scratch"/[123] <<PYTHON
import json, statistics, sys
runs = [json.load(open(name)) for name in sys.argv[2:]]
for j in runs:
    if "not resolved" in j["verdict"]:
        print(f"{sys.argv[1]}, seed {j['settings']['seed']}: {j['verdict']}", file=sys.stderr)
${cells:?Python that makes cells of runs}
print(" | ".join([f"| {sys.argv[1]}", *cells]) + " |", flush=True)
PYTHON
}

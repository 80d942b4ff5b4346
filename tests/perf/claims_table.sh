#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Prints, as Markdown, the table of docs/command.md: the share of the bound that each arm of `odc replay --claim` reaches, medians
# of three seeds: tests/perf/claims_table.sh BUILD_DIRECTORY [SECONDS_OF_A_REPLAY]
set -euo pipefail

odc=${1:?usage: tests/perf/claims_table.sh BUILD_DIRECTORY [SECONDS_OF_A_REPLAY]}/tools/odc
seconds=${2:-90}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# row WORDS OPTION...
row() {
    for seed in 1 2 3; do
        "$odc" replay "${@:2}" --claim 0.25 --seed $seed --seconds "$seconds" --json >"$scratch/$seed" 2>/dev/null
    done
    python3 - "$1" "$scratch"/[123] <<'PYTHON'
import json, statistics, sys
runs = [json.load(open(name)) for name in sys.argv[2:]]
for j in runs:
    if "not resolved" in j["verdict"]:
        print(f"claims_table.sh: {sys.argv[1]}, seed {j['settings']['seed']}: {j['verdict']}", file=sys.stderr)
shares = [statistics.median(j["arms"][arm]["share_of_bound"] for j in runs) for arm in range(6)]
over = statistics.median(j["speedup_over_static"]["median"] for j in runs)
print(f"| {sys.argv[1]} | " + " | ".join(f"{100 * share:.1f} %" for share in shares) + f" | {over:.3f}x |", flush=True)
PYTHON
}

cat <<'END'
| 8 ranks × 8 samples, share of the bound, medians of 3 seeds | collective + lb-micro | collective + sorted-rows | odc + lb-mini | + speeds | claims only | + speeds + claims | the last over odc + lb-mini |
|---|---|---|---|---|---|---|---|
END
row "equal devices"
row "\`--noise 0.1\`" --noise 0.1
row "\`--slow 0:2\`" --slow 0:2
row "\`--noise 0.1 --slow 0:2\`" --noise 0.1 --slow 0:2

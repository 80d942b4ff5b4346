#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Prints, as Markdown, the lookahead table of docs/command.md: speedups of ODC with LB-Mini and `odc replay --lookahead`, medians of
# three seeds.
#
# usage: tests/perf/lookahead_table.sh BUILD_DIRECTORY [SECONDS_OF_A_REPLAY]
cells='
def rate(j, schedule, policy, ahead):
    [arm] = [a for a in j["arms"] if (a["schedule"], a["policy"], a["lookahead"] > 1) == (schedule, policy, ahead)]
    return arm["samples_per_second"]
def over(schedule, policy, ahead, which=("odc", "lb-mini", True)):
    return statistics.median(rate(j, *which) / rate(j, schedule, policy, ahead) for j in runs)
speedups = [over("collective", "lb-micro", False, ("odc", "lb-mini", False)), over("collective", "lb-micro", False),
            over("collective", "sorted-rows", False), over("collective", "sorted-rows", True)]
moved = statistics.median(j["exchanged"]["moved"] for j in runs)
cells = [f"{speedup:.2f} ×" for speedup in speedups] + [f"{100 * moved:.0f} %"]'
# shellcheck source-path=SCRIPTDIR source=replay_rows.sh
. "$(dirname "$0")/replay_rows.sh"

cat <<'END'
| 8 ranks, medians of 3 seeds | without lookahead, over collective + lb-micro | lookahead, over collective + lb-micro | over collective + sorted-rows | over collective + sorted-rows in the same order | samples moved |
|---|---|---|---|---|---|
END
row "4 samples a rank, \`--lookahead 2\`" --minibatch 4 --lookahead 2
row "2 samples a rank, \`--lookahead 4 --most-moved 1 --most-displacement 4\`" \
    --minibatch 2 --lookahead 4 --most-moved 1 --most-displacement 4
row "2 samples a rank, \`--lookahead 4\`" --minibatch 2 --lookahead 4
row "8 samples a rank, \`--lookahead 2\`" --minibatch 8 --lookahead 2

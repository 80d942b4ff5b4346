#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Prints, as Markdown, the table of docs/command.md: the share of the bound that each arm of `odc replay --claim` reaches, medians
# of three seeds.
#
# usage: tests/perf/claims_table.sh BUILD_DIRECTORY [SECONDS_OF_A_REPLAY]
cells='
shares = [statistics.median(j["arms"][arm]["share_of_bound"] for j in runs) for arm in range(6)]
over = statistics.median(j["speedup_over_static"]["median"] for j in runs)
cells = [f"{100 * share:.1f} %" for share in shares] + [f"{over:.3f}x"]'
# shellcheck source-path=SCRIPTDIR source=replay_rows.sh
. "$(dirname "$0")/replay_rows.sh"

cat <<'END'
| 8 ranks × 8 samples, share of the bound, medians of 3 seeds | collective + lb-micro | collective + sorted-rows | odc + lb-mini | + speeds | claims only | + speeds + claims | the last over odc + lb-mini |
|---|---|---|---|---|---|---|---|
END
row "equal devices" --claim 0.25
row "\`--noise 0.1\`" --claim 0.25 --noise 0.1
row "\`--slow 0:2\`" --claim 0.25 --slow 0:2
row "\`--noise 0.1 --slow 0:2\`" --claim 0.25 --noise 0.1 --slow 0:2

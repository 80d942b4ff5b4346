// SPDX-License-Identifier: Apache-2.0
// Rounds of timings beside other programs: what those use of the processors is measured meanwhile, and rounds that they
// disturb are repeated. The choice does not look at the timings.
#pragma once

#include "bench/group.h"
#include "rank/statistics.h"

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

namespace odc_tool {

struct Disturbance {
    size_t repeated;               // rounds
    std::optional<double> others;  // share of the processors that other programs used during the kept rounds
};

struct Rounds {
    std::vector<size_t> kept;
    Disturbance disturbance;

    // `values`: one per round.
    MedianInterval median(const std::vector<double> &values) const;
};

// Collective, and the same result on all ranks. Repeats at most half as many rounds, and keeps the `pairs` least disturbed ones.
Rounds run_rounds(Group &group, int pairs, const std::function<void()> &round);

}  // namespace odc_tool

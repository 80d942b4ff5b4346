// SPDX-License-Identifier: Apache-2.0
// Plans the samples of a minibatch, or of a window of them, by the library's planner.
#pragma once

#include "replay/plan.h"
#include "replay/settings.h"

#include <odc/odc.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace odc_tool {

class Planner {
public:
    Planner(const ReplaySettings &settings, const Cost &cost, std::vector<uint64_t> lengths, int ranks)
        : settings_(settings), cost_(cost), lengths_(std::move(lengths)), ranks_(ranks) {}

    const std::vector<uint64_t> &lengths() const { return lengths_; }
    int ranks() const { return ranks_; }
    double cost_of(size_t sample) const { return cost_.of(lengths_[sample]); }

    // `speeds` as odc_get_speeds gives them, or none: equal; `tail`: share of the cost that is left to be claimed.
    Plan plan(const std::vector<size_t> &samples, int32_t policy, const std::vector<double> &speeds = {},
              double tail = 0) const;
    // The samples of each minibatch after exchanges within one window.
    std::vector<std::vector<size_t>> exchanged(const std::vector<std::vector<size_t>> &window,
                                               odc_window_summary &summary) const;

private:
    std::vector<uint64_t> tokens_of(const std::vector<size_t> &samples) const;

    const ReplaySettings &settings_;
    Cost cost_;
    std::vector<uint64_t> lengths_;
    int ranks_;
};

}  // namespace odc_tool

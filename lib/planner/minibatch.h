// SPDX-License-Identifier: Apache-2.0
// The samples to divide, what they cost, and how fast the ranks are.
#pragma once

#include "base/error.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace odc {

using Samples = std::vector<uint32_t>;  // by index
using Microbatches = std::vector<Samples>;

struct Minibatch {
    std::vector<uint64_t> lengths;
    uint64_t max_tokens;
    std::vector<double> costs;
    size_t ranks;                // equally fast ones: no more than samples; further ranks stay idle
    std::vector<double> speeds;  // of each rank, relative to their mean

    size_t samples() const { return costs.size(); }
    bool equally_fast() const;
    // Some of the samples, for the same ranks.
    Minibatch part(const Samples &some) const;
    Minibatch with_equal_speeds() const;
    double cost(const Samples &some) const;
};

// Throws ODC_ERROR_ARGUMENT.
Minibatch minibatch_of(const odc_plan_request &request);

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// The samples to divide, and what they cost.
#pragma once

#include "base/error.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace odc {

using Samples = std::vector<uint32_t>;  // by index
using Microbatches = std::vector<Samples>;

struct Minibatch {
    const uint64_t *lengths;
    uint64_t max_tokens;
    std::vector<double> costs;
    size_t ranks;  // at least one, and no more than samples: further ranks stay idle

    size_t samples() const { return costs.size(); }
    double cost(const Samples &some) const;
};

// Throws ODC_ERROR_ARGUMENT.
Minibatch minibatch_of(const odc_plan_request &request);

// See odc_plan_cost.
void plan_cost(const char *model, double *a, double *b);

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
#include "planner/microbatches.h"

#include "planner/refinement.h"

#include <algorithm>

namespace odc {

namespace {

// Comparisons per sample to refine a division, which bound its time.
constexpr uint64_t kSteps = 2'000;
constexpr uint64_t kStepsAtMost = 200'000;

}  // namespace

bool within_budget(const Samples &samples, const Minibatch &minibatch) {
    uint64_t left = minibatch.max_tokens;
    for (const uint32_t sample : samples) {
        if (minibatch.lengths[sample] > left) {
            return false;
        }
        left -= minibatch.lengths[sample];
    }
    return true;
}

// The sum of the tokens divided by the budget, rounded up; the sum does not overflow.
size_t fewest_microbatches(const Samples &samples, const Minibatch &minibatch) {
    size_t full = 0;
    uint64_t rest = 0;
    for (const uint32_t sample : samples) {
        const uint64_t tokens = minibatch.lengths[sample];
        const uint64_t left = minibatch.max_tokens - rest;
        full += tokens >= left ? 1 : 0;
        rest = tokens >= left ? tokens - left : rest + tokens;
    }
    return full + (rest > 0 ? 1 : 0);
}

size_t after(size_t microbatches) { return microbatches + 1 + microbatches / 128; }

std::optional<Microbatches> packed(const Samples &samples, size_t microbatches, const Minibatch &minibatch,
                                   const std::vector<double> &weights) {
    std::vector<double> local;
    for (const uint32_t sample : samples) {
        local.push_back(weights[sample]);
    }
    Microbatches out = largest_differencing(local, microbatches);
    refine(out, local, Speeds(microbatches, 1.0), {1, local.size()}, std::min(kSteps * local.size(), kStepsAtMost));
    for (Samples &microbatch : out) {
        for (uint32_t &index : microbatch) {
            index = samples[index];
        }
        if (!within_budget(microbatch, minibatch)) {
            return std::nullopt;
        }
    }
    return out;
}

void heaviest_first(Microbatches &microbatches, const Minibatch &minibatch) {
    std::stable_sort(microbatches.begin(), microbatches.end(),
                     [&](const Samples &x, const Samples &y) { return minibatch.cost(x) > minibatch.cost(y); });
}

}  // namespace odc

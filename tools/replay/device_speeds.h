// SPDX-License-Identifier: Apache-2.0
// How fast the emulated device of each rank is in each minibatch: noise, and ranks that are slow, always or for a while.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace odc_tool {

struct SlowRank {
    size_t rank;
    double factor;     // of its times
    size_t first = 1;  // minibatches, the first of a run is 1
    size_t last = kAlways;

    bool for_a_while() const { return last != kAlways; }
    static constexpr size_t kAlways = std::numeric_limits<size_t>::max();
};

// "RANK:FACTOR" or "RANK:FACTOR:FIRST-LAST", several with commas between. Throws Exit{2, ...}; `option` is in its text.
std::vector<SlowRank> parse_slow(const std::string &option, const std::string &text);
// Throws Exit{2, ...} where a rank or a minibatch is not in the run.
void check_slow(const std::vector<SlowRank> &slow, size_t ranks, size_t minibatches);

class DeviceSpeeds {
public:
    // A rank's noise is uniform in 1 - noise .. 1 + noise, another one in each minibatch, and follows from the seed.
    DeviceSpeeds(double noise, std::vector<SlowRank> slow, uint64_t seed, size_t ranks)
        : noise_(noise), slow_(std::move(slow)), seed_(seed), ranks_(ranks) {}

    // The ranks' speeds in a minibatch, counted from 0; 1 is that of a rank without noise that is not slow.
    std::vector<double> at(size_t minibatch) const;

private:
    double noise_;
    std::vector<SlowRank> slow_;
    uint64_t seed_;
    size_t ranks_;
};

}  // namespace odc_tool

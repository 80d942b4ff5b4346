// SPDX-License-Identifier: Apache-2.0
// What each rank computes in a minibatch of `odc replay`, how long that takes if communication takes no time, and the bound.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace odc_tool {

// The gradient of a set of samples: an integer per layer, summed over its samples, so that every plan of a minibatch has
// exactly the same total.
class Gradient {
public:
    static constexpr size_t kPeriod = 7;  // also the largest gradient of a sample

    void add_sample(uint64_t sample) { ++residues_[sample % kPeriod]; }
    uint32_t of_layer(int layer) const;

private:
    std::array<uint32_t, kPeriod> residues_{};
};

// An element's gradient is the layer's times a weight of at most this.
constexpr uint64_t kLargestWeight = 5;

struct Microbatch {
    double cost = 0;
    Gradient gradient;
};

struct Plan {
    std::vector<std::vector<Microbatch>> ranks;
    std::vector<Microbatch> items;  // for whoever claims them

    // Ideal times, for plans without items. A rank of speed s takes cost / s; `speeds` are those of all ranks.
    // Ranks wait for each other once.
    double ideal_of_odc(const std::vector<double> &speeds) const;
    // Ranks wait for each other at each layer of each microbatch.
    double ideal_of_collectives(const std::vector<double> &speeds, int layers) const;
};

// Samples of one minibatch, and what no schedule of them can undercut: all ranks computing all the time, or the costliest sample
// on the fastest rank, whichever takes longer.
struct Costs {
    double total = 0;
    double costliest = 0;

    void add_sample(double cost);
    double bound(const std::vector<double> &speeds) const;
};

}  // namespace odc_tool

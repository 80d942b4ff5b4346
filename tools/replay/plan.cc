// SPDX-License-Identifier: Apache-2.0
// Ideals and the bound.
#include "replay/plan.h"

#include <algorithm>
#include <numeric>

namespace odc_tool {

uint32_t Gradient::of_layer(int layer) const {
    uint32_t sum = 0;
    for (size_t residue = 0; residue < kPeriod; ++residue) {
        sum += residues_[residue] * static_cast<uint32_t>(1 + (residue + static_cast<size_t>(layer)) % kPeriod);
    }
    return sum;
}

double Plan::ideal_of_odc(const std::vector<double> &speeds) const {
    double longest = 0;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
        const double sum = std::accumulate(ranks[rank].begin(), ranks[rank].end(), 0.0,
                                           [](double all, const Microbatch &one) { return all + one.cost; });
        longest = std::max(longest, sum / speeds[rank]);
    }
    return longest;
}

// A rank asks for a layer's parameters when it begins to compute the layer before (device.cc), and has them when all ranks have
// asked. All have equally many microbatches.
double Plan::ideal_of_collectives(const std::vector<double> &speeds, int layers) const {
    std::vector<double> end(ranks.size());  // of each rank's last layer
    double ready = 0;                       // the parameters of the next
    for (size_t microbatch = 0; microbatch < ranks.front().size(); ++microbatch) {
        for (int step = 0; step < 2 * layers; ++step) {
            const double share = (step < layers ? 1.0 : 2.0) / (3.0 * layers);  // backward takes twice as long
            const double next_ready = std::max(ready, *std::max_element(end.begin(), end.end()));
            for (size_t rank = 0; rank < ranks.size(); ++rank) {
                end[rank] = std::max(end[rank], ready) + ranks[rank][microbatch].cost / speeds[rank] * share;
            }
            ready = next_ready;
        }
    }
    return *std::max_element(end.begin(), end.end());
}

void Costs::add_sample(double cost) {
    total += cost;
    costliest = std::max(costliest, cost);
}

double Costs::bound(const std::vector<double> &speeds) const {
    return std::max(total / std::accumulate(speeds.begin(), speeds.end(), 0.0),
                    costliest / *std::max_element(speeds.begin(), speeds.end()));
}

}  // namespace odc_tool

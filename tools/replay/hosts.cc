// SPDX-License-Identifier: Apache-2.0
// Divides ranks over hosts and counts bytes.
#include "replay/hosts.h"

#include "cli/exit.h"

#include <fmt/format.h>

#include <algorithm>

namespace odc_tool {

const char *crossing_name(Crossing crossing) {
    switch (crossing) {
        case Crossing::Ring: return "ring";
        case Crossing::Flat: return "flat";
        case Crossing::Cache: return "cache";
        case Crossing::CacheAndSums: return "cache+sums";
    }
    return "";
}

void check_hosts(int hosts, int ranks) {
    if (hosts > 1 && (ranks % hosts != 0 || ranks / hosts < 2)) {
        throw Exit{2,
                   fmt::format("--hosts {} cannot have {} ranks, equally many on each and at least two; give --ranks a "
                               "multiple of {}, {} or more",
                               hosts, ranks, hosts, 2 * hosts)};
    }
}

EmulatedHosts::EmulatedHosts(int hosts, int ranks, int layers, uint64_t layer_elements, uint64_t sum_bytes,
                             double seconds_per_byte)
    : ranks_(static_cast<size_t>(ranks / hosts)), layers_(static_cast<uint64_t>(layers)),
      layer_elements_(layer_elements), sum_bytes_(sum_bytes), seconds_per_byte_(seconds_per_byte),
      held_(static_cast<size_t>(hosts)) {
    const auto size = static_cast<uint64_t>(ranks);
    const uint64_t slice = (layer_elements + size - 1) / size;  // the last ones are shorter
    for (size_t host = 0; host < held_.size(); ++host) {
        const auto begin = [&](size_t of) { return std::min(layer_elements, of * ranks_ * slice); };
        held_[host] = begin(host + 1) - begin(host);
    }
}

uint64_t EmulatedHosts::ring_bytes(uint64_t element_bytes) const {
    const uint64_t size = ranks_ * held_.size();
    return layer_elements_ * element_bytes * (size - 1) / size;
}

// A microbatch gathers each layer twice and adds to it once.
std::vector<HostTraffic> EmulatedHosts::traffic(Crossing crossing, const Plan &plan) const {
    std::vector<HostTraffic> traffic(count());
    if (crossing == Crossing::Ring) {
        const uint64_t once = 2 * ring_bytes(kParameterBytes) + ring_bytes(kGradientBytes);
        const auto bytes = double(plan.ranks.front().size() * layers_ * once);
        std::fill(traffic.begin(), traffic.end(), HostTraffic{bytes, bytes});
        return traffic;
    }
    for (size_t to = 0; to < count(); ++to) {
        uint64_t microbatches = 0;
        for (size_t rank = to * ranks_; rank < (to + 1) * ranks_; ++rank) {
            microbatches += plan.ranks[rank].size();
        }
        const auto once = uint64_t{microbatches > 0};
        const uint64_t parameter_bytes = kParameterBytes * (crossing == Crossing::Flat ? 2 * microbatches : once);
        const uint64_t gradient_bytes =
            crossing == Crossing::CacheAndSums ? sum_bytes_ * once : kGradientBytes * microbatches;
        for (size_t from = 0; from < count(); ++from) {
            if (from != to) {
                const auto parameters = double(layers_ * held_[from] * parameter_bytes);
                const auto gradients = double(layers_ * held_[from] * gradient_bytes);
                traffic[to].in += parameters;
                traffic[from].out += parameters;
                traffic[to].out += gradients;
                traffic[from].in += gradients;
            }
        }
    }
    return traffic;
}

double EmulatedHosts::seconds(const std::vector<HostTraffic> &traffic) const {
    double busiest = 0;
    for (const HostTraffic &host : traffic) {
        busiest = std::max({busiest, host.in, host.out});
    }
    return busiest * seconds_per_byte_;
}

}  // namespace odc_tool

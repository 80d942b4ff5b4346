// SPDX-License-Identifier: Apache-2.0
// The emulated hosts of `odc replay --hosts`: which ranks are on which, and what crosses between them by the formulas that the
// library's statistics are compared with.
#pragma once

#include "replay/plan.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace odc_tool {

// How bytes come to other hosts: by ring collectives; read and added by each rank; parameters read once a host and
// minibatch; these, and its sums sent once.
enum class Crossing { Ring, Flat, Cache, CacheAndSums };
const char *crossing_name(Crossing crossing);

constexpr uint64_t kParameterBytes = 2;  // of an element: bf16
constexpr uint64_t kGradientBytes = 4;   // f32, as sums are
constexpr uint64_t kExactSumBytes = 8;

// Bytes over the two links of a host.
struct HostTraffic {
    double in = 0;
    double out = 0;
};

// Throws Exit{2, ...} if the ranks cannot be divided over so many.
void check_hosts(int hosts, int ranks);

class EmulatedHosts {
public:
    // `layer_elements`: as run; `sum_bytes`: of a host's sum of an element; `seconds_per_byte`: of a link, in the emulated devices'
    // time.
    EmulatedHosts(int hosts, int ranks, int layers, uint64_t layer_elements, uint64_t sum_bytes,
                  double seconds_per_byte);

    size_t count() const { return held_.size(); }
    size_t host_of(size_t rank) const { return rank / ranks_; }
    bool is_first(size_t rank) const { return rank % ranks_ == 0; }  // of its host
    double seconds_per_byte() const { return seconds_per_byte_; }
    // Elements of a layer that are on other hosts.
    uint64_t foreign(size_t host) const { return layer_elements_ - held_[host]; }
    // Into and out of each host when a ring of all ranks, which crosses each link once, gathers or reduces elements of so many bytes.
    uint64_t ring_bytes(uint64_t element_bytes) const;

    // What a minibatch moves over the links of each host.
    std::vector<HostTraffic> traffic(Crossing crossing, const Plan &plan) const;
    // The seconds that the busiest link needs for it.
    double seconds(const std::vector<HostTraffic> &traffic) const;

private:
    size_t ranks_;  // of a host
    uint64_t layers_;
    uint64_t layer_elements_;
    uint64_t sum_bytes_;
    double seconds_per_byte_;
    std::vector<uint64_t> held_;  // elements of a layer, by host
};

}  // namespace odc_tool

// SPDX-License-Identifier: Apache-2.0
// The runs of `odc replay`: the five arms, the samples of each minibatch, their plans under each policy, the compute times, and
// the expected sums of gradients.
#pragma once

#include "replay/settings.h"

#include <odc/odc.h>

#include <array>
#include <cstdint>
#include <vector>

namespace odc_tool {

// Waiting and Prefetching are those of `odc replay --prefetch`.
enum class Schedule { Collective, Odc, Waiting, Prefetching };
const char *schedule_name(Schedule schedule);

struct Arm {
    Schedule schedule;
    int32_t policy;
};

// Collectives cannot run LB-Mini: its microbatch counts differ between ranks.
inline constexpr std::array<Arm, 5> kArms{{
    {Schedule::Collective, ODC_LOCAL_SORT},
    {Schedule::Collective, ODC_LB_MICRO},
    {Schedule::Odc, ODC_LOCAL_SORT},
    {Schedule::Odc, ODC_LB_MICRO},
    {Schedule::Odc, ODC_LB_MINI},
}};
constexpr size_t kBaseline = 1;  // speedups are over collective + lb-micro
constexpr size_t kBest = 4;      // odc + lb-mini, the paper's arm

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

    // If communication takes no time: ranks wait for each other at each layer of each microbatch (collective), or once.
    double ideal_cost(Schedule schedule) const;
};

struct Minibatch {
    std::array<Plan, 3> plans;  // by policy
    Gradient total;

    const Plan &plan(int32_t policy) const { return plans[static_cast<size_t>(policy - ODC_LOCAL_SORT)]; }
};

struct Workload {
    std::vector<Minibatch> minibatches;
    uint64_t samples = 0;    // of one arm
    double ns_per_cost = 0;  // the emulated device's speed
    double mean_length = 0;
    uint64_t longest = 0;
    size_t lengths = 0;

    double ideal_cost(const Arm &arm) const;
};

// The lengths named by `settings`. Throws Exit{2, ...} for bad input.
std::vector<uint64_t> replay_lengths(const ReplaySettings &settings);

// Throws Exit{2, ...} if a minibatch has more samples than exact sums in f32 allow.
void check_minibatch(const ReplaySettings &settings, int ranks);

// Deterministic: all ranks get the same from the same settings.
Workload make_workload(const ReplaySettings &settings, const Model &model, const std::vector<uint64_t> &lengths,
                       int ranks);

// A run is one arm on one minibatch. The arms take turns minibatch by minibatch, and each has each place in the order.
struct Run {
    size_t minibatch;
    size_t arm;
};
std::vector<Run> run_order(size_t minibatches);

}  // namespace odc_tool

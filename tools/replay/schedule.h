// SPDX-License-Identifier: Apache-2.0
// What `odc replay` runs: the five arms, the samples of each minibatch, who runs which microbatches of them under each
// policy, how long those take, and what sum of gradients must come out.
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

// No collective can run LB-Mini: its microbatch counts differ between ranks.
inline constexpr std::array<Arm, 5> kArms{{
    {Schedule::Collective, ODC_LOCAL_SORT},
    {Schedule::Collective, ODC_LB_MICRO},
    {Schedule::Odc, ODC_LOCAL_SORT},
    {Schedule::Odc, ODC_LB_MICRO},
    {Schedule::Odc, ODC_LB_MINI},
}};
constexpr size_t kBaseline = 1;  // speedups are over collective + lb-micro
constexpr size_t kBest = 4;      // odc + lb-mini, the arm that the paper is about

// The gradient of a set of samples: an integer per layer, a sum over its samples, so that every plan of a minibatch
// must give the same total, exactly.
class Gradient {
public:
    static constexpr size_t kPeriod = 7;  // also the largest gradient of a sample

    void add_sample(uint64_t sample) { ++residues_[sample % kPeriod]; }
    uint32_t of_layer(int layer) const;

private:
    std::array<uint32_t, kPeriod> residues_{};
};

// An element's gradient is the layer's times a weight that is not above this.
constexpr uint64_t kLargestWeight = 5;

struct Microbatch {
    double cost = 0;
    Gradient gradient;
};

struct Plan {
    std::vector<std::vector<Microbatch>> ranks;

    // With communication that takes no time: ranks meet at each layer of each microbatch (collective), or once.
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

// The lengths that `settings` names. Throws Exit{2, ...} for bad input.
std::vector<uint64_t> replay_lengths(const ReplaySettings &settings);

// Throws Exit{2, ...} when a minibatch has more samples than sums that are exact in f32 can hold.
void check_minibatch(const ReplaySettings &settings, int ranks);

// Deterministic: every rank makes the same from the same settings.
Workload make_workload(const ReplaySettings &settings, const Model &model, const std::vector<uint64_t> &lengths,
                       int ranks);

// A run is one arm on one minibatch. The arms take turns minibatch by minibatch, each in each place of the order.
struct Run {
    size_t minibatch;
    size_t arm;
};
std::vector<Run> run_order(size_t minibatches);

}  // namespace odc_tool

// SPDX-License-Identifier: Apache-2.0
// The runs of `odc replay`: the arms, the samples of each minibatch, their plans under each policy, the compute times, and
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

// Which samples a minibatch has.
enum class Order { Data, Lookahead };

struct Arm {
    Schedule schedule;
    int32_t policy;
    Order order = Order::Data;
};

// The last two only with `--lookahead`. Collectives cannot run LB-Mini: its microbatch counts differ between ranks.
inline constexpr std::array<Arm, 8> kArms{{
    {Schedule::Collective, ODC_LOCAL_SORT},
    {Schedule::Collective, ODC_LB_MICRO},
    {Schedule::Collective, ODC_SORTED_ROWS},
    {Schedule::Odc, ODC_LOCAL_SORT},
    {Schedule::Odc, ODC_LB_MICRO},
    {Schedule::Odc, ODC_LB_MINI},
    {Schedule::Collective, ODC_SORTED_ROWS, Order::Lookahead},
    {Schedule::Odc, ODC_LB_MINI, Order::Lookahead},
}};
constexpr size_t kBaseline = 1;        // speedups are over collective + lb-micro, the paper's baseline
constexpr size_t kBestCollective = 2;  // and over collective + sorted-rows
constexpr size_t kLbMini = 5;          // odc + lb-mini, the paper's arm

size_t arm_count(const ReplaySettings &settings);
// ODC with all that the settings allow: what the verdict is about.
size_t best_arm(const ReplaySettings &settings);

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
    double ideal_cost(Schedule schedule, int layers) const;

private:
    double ideal_cost_of_collectives(int layers) const;
};

// The same samples in one order.
struct Minibatch {
    std::array<Plan, 4> plans;  // by policy
    Gradient total;
};

// What lookahead did to the order, mean over the windows.
struct Exchanged {
    double moved = 0;
    double displacement = 0;
    double token_variation = 0;
    double token_variation_before = 0;
};

struct Workload {
    std::array<std::vector<Minibatch>, 2> minibatches;  // by order
    Exchanged exchanged;
    size_t arms = 0;         // of kArms
    uint64_t samples = 0;    // of one arm
    double ns_per_cost = 0;  // the emulated device's speed
    double mean_length = 0;
    uint64_t longest = 0;
    size_t lengths = 0;
    int layers = 0;

    size_t count() const { return minibatches[0].size(); }
    const Minibatch &minibatch(const Arm &arm, size_t number) const {
        return minibatches[static_cast<size_t>(arm.order)][number];
    }
    const Plan &plan(const Arm &arm, size_t number) const {
        return minibatch(arm, number).plans[static_cast<size_t>(arm.policy - ODC_LOCAL_SORT)];
    }
    double ideal_cost(const Arm &arm, size_t number) const {
        return plan(arm, number).ideal_cost(arm.schedule, layers);
    }
    double ideal_cost(const Arm &arm) const;  // of all minibatches
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
std::vector<Run> run_order(const Workload &workload);

}  // namespace odc_tool

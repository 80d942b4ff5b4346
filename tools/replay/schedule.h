// SPDX-License-Identifier: Apache-2.0
// The runs of `odc replay`: the arms, the samples of each minibatch, their plans under each policy, the compute times, and
// the expected sums of gradients.
#pragma once

#include "replay/hosts.h"
#include "replay/plan.h"
#include "replay/planner.h"
#include "replay/settings.h"

#include <odc/odc.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace odc_tool {

// Waiting and Prefetching are those of `odc replay --prefetch`.
enum class Schedule { Collective, Odc, Waiting, Prefetching };
const char *schedule_name(Schedule schedule);

// Which samples a minibatch has.
enum class Order { Data, Lookahead };

// What the planner takes for the ranks' speeds: equal ones, or those that the library measured.
enum class Speeds { Equal, Measured };

// Whether ranks on emulated hosts read parameters of other hosts by the node cache, and send gradients in node-local sums.
enum class NodeCache { Off, Alone, WithSums };

struct Arm {
    Schedule schedule;
    int32_t policy;
    Order order = Order::Data;
    Speeds speeds = Speeds::Equal;
    double tail = 0;  // share of the cost that is claimed
    NodeCache cache = NodeCache::Off;

    // Whether the plan is known before the run.
    bool fixed() const { return speeds == Speeds::Equal && tail == 0; }
    Crossing crossing() const;
    bool operator==(const Arm &) const = default;
};

// As tables name it.
std::string arm_name(const Arm &arm);

inline constexpr Arm kBaseline{Schedule::Collective, ODC_LB_MICRO};           // speedups are over the paper's baseline
inline constexpr Arm kBestCollective{Schedule::Collective, ODC_SORTED_ROWS};  // and over this
inline constexpr Arm kOdcLbMini{Schedule::Odc, ODC_LB_MINI};                  // the paper's arm
inline constexpr Arm kOdcCache{Schedule::Odc, ODC_LB_MINI, Order::Data, Speeds::Equal, 0, NodeCache::Alone};
inline constexpr Arm kOdcCacheAndSums{Schedule::Odc, ODC_LB_MINI, Order::Data, Speeds::Equal, 0, NodeCache::WithSums};

// The last one is ODC with all that the settings allow: the verdict is about it.
std::vector<Arm> make_arms(const ReplaySettings &settings);

// The same samples in one order.
struct Minibatch {
    std::vector<size_t> samples;
    std::array<Plan, 4> plans;  // by policy, of equal speeds
    Gradient total;
    Costs costs;

    const Plan &plan(int32_t policy) const { return plans[static_cast<size_t>(policy - ODC_LOCAL_SORT)]; }
};

// What lookahead did to the order, mean over the windows.
struct Exchanged {
    double moved = 0;
    double displacement = 0;
    double token_variation = 0;
    double token_variation_before = 0;
};

struct Workload {
    std::vector<Arm> arms;
    std::array<std::vector<Minibatch>, 2> minibatches;  // by order; after them those of the warm-up
    std::vector<std::vector<double>> speeds;            // of the devices, by minibatch and rank
    size_t warm_up = 0;  // minibatches that the last arm runs before all others, and in which speeds are measured first
    Exchanged exchanged;
    uint64_t samples = 0;    // of one arm
    double ns_per_cost = 0;  // of an emulated device of speed 1
    double mean_length = 0;
    uint64_t longest = 0;
    size_t lengths = 0;
    int layers = 0;
    std::optional<EmulatedHosts> hosts;

    // ODC with equal speeds, on the last arm's minibatches.
    Arm without_claims() const { return {Schedule::Odc, ODC_LB_MINI, arms.back().order}; }
    // The best that collectives can do with the last arm's minibatches.
    Arm best_collective() const { return {Schedule::Collective, ODC_SORTED_ROWS, arms.back().order}; }
    size_t count() const { return minibatches[0].size() - warm_up; }
    const Minibatch &minibatch(const Arm &arm, size_t number) const {
        return minibatches[static_cast<size_t>(arm.order)][number];
    }
    double bound(const Arm &arm, size_t number) const { return minibatch(arm, number).costs.bound(speeds[number]); }
    // The time that an arm with fixed plans takes if communication takes none; for any other arm the bound.
    double expected(const Arm &arm, size_t number) const;
    // What crosses between emulated hosts, by the formulas.
    std::vector<HostTraffic> traffic(const Arm &arm, size_t number) const;
    // As `expected`, but not less than the busiest link needs.
    double duration(const Arm &arm, size_t number) const;
    // The same for all minibatches together.
    double bound(const Arm &arm) const;
    double expected(const Arm &arm) const;
    double duration(const Arm &arm) const;
};

// The lengths named by `settings`. Throws Exit{2, ...} for bad input.
std::vector<uint64_t> replay_lengths(const ReplaySettings &settings);

// Throws Exit{2, ...} if a minibatch has more samples than exact sums in f32 allow, or --slow names what is not in the run.
void check_workload(const ReplaySettings &settings, size_t lengths, int ranks);

// Deterministic: all ranks get the same from the same settings.
Workload make_workload(const ReplaySettings &settings, const Model &model, const Planner &planner);

// A run is one arm on one minibatch. The arms take turns minibatch by minibatch, and each has each place in the order.
struct Run {
    size_t minibatch;
    size_t arm;  // of the workload's
};
std::vector<Run> run_order(const Workload &workload);

}  // namespace odc_tool

// SPDX-License-Identifier: Apache-2.0
// A rank's part of a replay: its plans, its shards, its device.
#include "replay/job.h"

#include "cli/exit.h"
#include "cli/machine_load.h"
#include "rank/context.h"
#include "replay/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace odc_tool {
namespace {

// Each rank makes the plans by itself: on several hosts, from files that may differ.
void check_agreement(odc_context *context, const ReplaySettings &settings, const std::vector<uint64_t> &lengths) {
    uint64_t hash = 1469598103934665603ULL;
    const auto mix = [&hash](uint64_t value) { hash = (hash ^ value) * 1099511628211ULL; };
    std::for_each(lengths.begin(), lengths.end(), mix);
    for (uint64_t value :
         {settings.max_tokens, settings.scale, settings.seed, uint64_t(settings.minibatch),
          uint64_t(settings.minibatches), uint64_t(settings.seconds * 1e6), uint64_t(settings.prefetch),
          uint64_t(settings.compute * 1e6), uint64_t(settings.lookahead), uint64_t(settings.window.sorted),
          uint64_t(settings.window.most_moved * 1e6), uint64_t(settings.window.most_displacement * 1e6),
          uint64_t(settings.noise * 1e6), uint64_t(settings.claim * 1e6), uint64_t(settings.sum)}) {
        mix(value);
    }
    for (const SlowRank &slow : settings.slow) {
        for (const uint64_t value : {slow.rank, size_t(slow.factor * 1e6), slow.first, slow.last}) {
            mix(value);
        }
    }
    const auto mine = double(hash >> 12);  // exact in a double
    std::array<double, 2> extremes{mine, -mine};
    check(odc_all_reduce(context, extremes.data(), extremes.size(), ODC_MAX));
    if (extremes[0] != mine || extremes[1] != -mine) {
        throw Exit{2, fmt::format("rank {} read other lengths or has other options than another rank; a replay needs "
                                  "the same everywhere",
                                  odc_rank(context))};
    }
}

RankTotals totals_of(odc_context *context) {
    odc_stats stats{};
    stats.struct_size = sizeof stats;
    check(odc_get_stats(context, &stats));
    return {stats.gather_bytes, stats.scatter_add_bytes, stats.publish_wait_ns,
            stats.sync_wait_ns, stats.lock_wait_ns,      own_cpu_seconds()};
}

}  // namespace

ReplayJob::ReplayJob(const ReplaySettings &replay_settings, odc_context *joined, odc_context *joined_barrier)
    : settings(replay_settings), context(joined), barrier(joined_barrier), rank(static_cast<size_t>(odc_rank(context))),
      model(find_model(settings.model)), planner(settings, model.cost, replay_lengths(settings), odc_size(context)),
      workload(make_workload(settings, model, planner)),
      layer_elements(std::max<uint64_t>(1, model.layer_elements / settings.scale)),
      shards(context, model.layers, layer_elements, settings.sum), device(shards, context, barrier) {
    check_agreement(context, settings, planner.lengths());
}

void ReplayJob::read_speeds() {
    measured_speeds.resize(static_cast<size_t>(odc_size(context)));
    check(odc_get_speeds(context, measured_speeds.data(), measured_speeds.size()));
}

RunRecord ReplayJob::run(int32_t number, size_t minibatch, const Arm &arm, double ns_per_cost, Detail detail) {
    const Minibatch &samples = workload.minibatch(arm, minibatch);
    const std::vector<double> speeds = arm.speeds == Speeds::Measured ? measured_speeds : std::vector<double>{};
    const Plan plan =
        arm.fixed() ? samples.plan(arm.policy) : planner.plan(samples.samples, arm.policy, speeds, arm.tail);
    // Speeds are measured in the last arm only: once a minibatch, as in training.
    const DeviceWork work{plan.ranks[rank], plan.items, ns_per_cost / workload.speeds[minibatch][rank],
                          arm.speeds == Speeds::Measured && arm == workload.arms.back()};
    try {
        const RunRecord record = device.run(number, arm.schedule, work, detail);
        shards.check_gradients(samples.total);
        return record;
    } catch (const Exit &exit) {
        if (exit.message.empty()) {
            throw;
        }
        throw Exit{exit.status, fmt::format("replay, rank {}, minibatch {} of {}: {}", rank, minibatch + 1,
                                            arm_name(arm), exit.message)};
    }
}

std::vector<RankTotals> ReplayJob::collect_totals() {
    const RankTotals mine = totals_of(context);
    std::vector<RankTotals> all;
    for (const auto &one : collect(context, "totals", std::vector<RankTotals>{mine})) {
        all.push_back(one.front());
    }
    return all;
}

}  // namespace odc_tool

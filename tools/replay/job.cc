// SPDX-License-Identifier: Apache-2.0
// A rank's part of a replay: its plans, its shards, its device.
#include "replay/job.h"

#include "cli/exit.h"
#include "cli/machine_load.h"
#include "rank/context.h"
#include "rank/routes.h"
#include "replay/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

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
          uint64_t(settings.noise * 1e6), uint64_t(settings.claim * 1e6), uint64_t(settings.sum),
          uint64_t(settings.hosts), uint64_t(settings.bandwidth)}) {
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

// On all contexts.
RankTotals totals_of(const std::vector<std::unique_ptr<ModelShards>> &models) {
    RankTotals totals{};
    for (const std::unique_ptr<ModelShards> &model : models) {
        odc_stats stats{};
        stats.struct_size = sizeof stats;
        check(odc_get_stats(model->context(), &stats));
        totals.gather_bytes += stats.gather_bytes;
        totals.scatter_add_bytes += stats.scatter_add_bytes;
        totals.publish_wait_ns += stats.publish_wait_ns;
        totals.sync_wait_ns += stats.sync_wait_ns;
        totals.lock_wait_ns += stats.lock_wait_ns;
    }
    totals.cpu_seconds = own_cpu_seconds();
    return totals;
}

void check_one_machine(const odc_context *context) {
    if (const std::optional<int> rank = rank_elsewhere(routes_of(context))) {
        throw Exit{2,
                   fmt::format("--hosts emulates hosts on one machine, and rank {} of this job is on another; leave it "
                               "out there",
                               *rank)};
    }
}

}  // namespace

void Contexts::abort(const char *message) const {
    for (const Context *context : {&flat, &cached, &barrier, &all}) {
        if (*context) {
            odc_abort(context->get(), message);
        }
    }
}

Stage::Stage(Models arm_models, std::unique_ptr<Network> joined, odc_context *barrier)
    : models(std::move(arm_models)), network(std::move(joined)), device(models, *network, barrier) {}

void Stage::check_gradients(const Gradient &total) {
    for (ModelShards *model : models) {
        model->check_gradients(model == models.back() ? total : Gradient{});
    }
}

ReplayJob::ReplayJob(const ReplaySettings &replay_settings, Contexts &contexts)
    : settings(replay_settings), context(contexts.all.get()), barrier(contexts.barrier.get()),
      rank(static_cast<size_t>(odc_rank(context))), model(find_model(settings.model)),
      planner(settings, model.cost, replay_lengths(settings), odc_size(context)),
      workload(make_workload(settings, model, planner)), layer_elements(scaled_layer(model, settings.scale)) {
    check_agreement(context, settings, planner.lengths());
    if (workload.hosts) {
        join_hosts(contexts);
    } else {
        stages.push_back(std::make_unique<Stage>(Models{add_model(context)}, std::make_unique<Network>(), barrier));
    }
}

ModelShards *ReplayJob::add_model(odc_context *in) {
    models.push_back(std::make_unique<ModelShards>(in, model.layers, layer_elements, settings.sum));
    return models.back().get();
}

void ReplayJob::join_hosts(Contexts &contexts) {
    check_one_machine(context);
    const EmulatedHosts &hosts = *workload.hosts;
    const double ns_per_byte = hosts.seconds_per_byte() * workload.ns_per_cost;
    // A context reads the setting when it is made.
    const auto joined = [&](const char *group, const char *node_cache) {
        setenv("ODC_NODE_CACHE", node_cache, 1);
        return join_apart(context, group, settings.hosts);
    };
    contexts.flat = joined("replay flat", "off");
    contexts.cached = joined("replay cache", "auto");
    links = std::make_unique<Links>(context, hosts.count(), static_cast<size_t>(model.layers));
    ModelShards *const shared = add_model(context);
    ModelShards *const flat = add_model(contexts.flat.get());
    ModelShards *const cached = add_model(contexts.cached.get());
    const auto add = [&](Models on, std::unique_ptr<Network> network) {
        stages.push_back(std::make_unique<Stage>(std::move(on), std::move(network), barrier));
    };
    const auto add_odc = [&](Models on, Crossing crossing) {
        auto network = std::make_unique<OdcNetwork>(hosts, *links, on.front()->context(), on.back()->context(), barrier,
                                                    crossing, ns_per_byte);
        add(std::move(on), std::move(network));
    };
    add({shared}, std::make_unique<RingNetwork>(hosts, rank, ns_per_byte));
    add_odc({flat}, Crossing::Flat);
    add_odc({cached, flat}, Crossing::Cache);  // a context with a node cache has sums, too
    add_odc({cached}, Crossing::CacheAndSums);
}

Stage &ReplayJob::stage_of(const Arm &arm) { return *stages[workload.hosts ? static_cast<size_t>(arm.crossing()) : 0]; }

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
        Stage &stage = stage_of(arm);
        const RunRecord record = stage.device.run(number, arm.schedule, work, detail);
        stage.check_gradients(samples.total);
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
    const RankTotals mine = totals_of(models);
    std::vector<RankTotals> all;
    for (const auto &one : collect(context, "totals", std::vector<RankTotals>{mine})) {
        all.push_back(one.front());
    }
    return all;
}

OwnMoments ReplayJob::take_moments() {
    OwnMoments taken;
    for (const std::unique_ptr<Stage> &stage : stages) {
        taken.append({stage->device.take_events(), stage->network->take_spans()});
    }
    return taken;
}

}  // namespace odc_tool

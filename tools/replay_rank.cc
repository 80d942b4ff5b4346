// SPDX-License-Identifier: Apache-2.0
// A rank of `odc replay` joins, runs all arms on all minibatches, checks every sum and hands its records to rank 0.
#include "replay_rank.h"

#include "context.h"
#include "progress.h"
#include "replay_device.h"
#include "replay_report.h"
#include "timeline.h"
#include "trace.h"
#include "verbs.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <optional>

namespace odc_tool {
namespace {

double cpu_seconds() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval &time) { return double(time.tv_sec) + double(time.tv_usec) * 1e-6; };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Plans are made by each rank for itself: on several hosts, from files that had better be the same.
void check_agreement(odc_context *context, const ReplaySettings &settings, const std::vector<uint64_t> &lengths) {
    uint64_t hash = 1469598103934665603ULL;
    const auto mix = [&hash](uint64_t value) { hash = (hash ^ value) * 1099511628211ULL; };
    std::for_each(lengths.begin(), lengths.end(), mix);
    for (uint64_t value : {settings.max_tokens, settings.scale, settings.seed, uint64_t(settings.minibatch),
                           uint64_t(settings.minibatches), uint64_t(settings.seconds * 1e6)}) {
        mix(value);
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
            stats.sync_wait_ns, stats.lock_wait_ns,      cpu_seconds()};
}

class RankReplay {
public:
    RankReplay(const ReplaySettings &settings, odc_context *context, odc_context *meeting)
        : settings_(settings), context_(context), rank_(static_cast<size_t>(odc_rank(context))),
          model_(find_model(settings.model)), lengths_(replay_lengths(settings)),
          workload_(make_workload(settings, model_, lengths_, odc_size(context))),
          layer_elements_(std::max<uint64_t>(1, model_.layer_elements / settings.scale)),
          shards_(context, model_.layers, layer_elements_), device_(shards_, context, meeting) {
        check_agreement(context, settings, lengths_);
        for (const std::string &picture : {settings.timeline, settings.trace}) {
            if (rank_ == 0 && !picture.empty()) {
                check_writable(picture);  // better now than after the run
            }
        }
    }

    void run_all() {
        const std::vector<Run> runs = run_order(workload_.minibatches.size());
        double total = 0;
        for (const Arm &arm : kArms) {
            total += workload_.ideal_cost(arm);
        }
        std::optional<Progress> progress;
        if (rank_ == 0) {
            progress.emplace(total);
        }
        double done = 0;
        for (size_t run = 0; run < runs.size(); ++run) {
            const Arm &arm = kArms[runs[run].arm];
            const Minibatch &minibatch = workload_.minibatches[runs[run].minibatch];
            if (progress) {
                progress->show(done, fmt::format("minibatch {}/{}  {}", runs[run].minibatch + 1,
                                                 workload_.minibatches.size(), arm_name(arm)));
            }
            run_one(run, runs[run], minibatch, arm);
            done += minibatch.plan(arm.policy).ideal_cost(arm.schedule);
        }
    }

    void report() {
        const RankTotals mine = totals_of(context_);
        const RunRecords records = collect(context_, "records", records_);
        const auto totals = collect(context_, "totals", std::vector<RankTotals>{mine});
        const auto events = collect(context_, "events", device_.events());
        if (rank_ != 0) {
            return;
        }
        Report report{settings_, model_, workload_, layer_elements_, {}, make_arm_reports(workload_, records)};
        for (const auto &rank : totals) {
            report.totals.push_back(rank.front());
        }
        // Before the pictures: the figures must not be lost with a file that cannot be written.
        settings_.json ? print_json(report) : print_table(report);
        if (!settings_.timeline.empty()) {
            write_timeline(settings_.timeline, report, records, events);
        }
        if (!settings_.trace.empty()) {
            write_trace(settings_.trace, report, records, events);
        }
    }

private:
    void run_one(size_t number, const Run &run, const Minibatch &minibatch, const Arm &arm) {
        const bool pictured =
            run.minibatch < kPicturedMinibatches && !(settings_.timeline.empty() && settings_.trace.empty());
        try {
            records_.push_back(device_.run(static_cast<int32_t>(number), arm.schedule,
                                           minibatch.plan(arm.policy).ranks[rank_], workload_.ns_per_cost,
                                           pictured ? Recording::Events : Recording::Times));
            shards_.check_gradients(minibatch.total);
        } catch (const Exit &exit) {
            if (exit.message.empty()) {
                throw;
            }
            throw Exit{exit.status, fmt::format("replay, rank {}, minibatch {} of {}: {}", rank_, run.minibatch + 1,
                                                arm_name(arm), exit.message)};
        }
    }

    const ReplaySettings &settings_;
    odc_context *context_;
    size_t rank_;
    Model model_;
    std::vector<uint64_t> lengths_;
    Workload workload_;
    uint64_t layer_elements_;
    ModelShards shards_;
    Device device_;
    std::vector<RunRecord> records_;
};

}  // namespace

void replay_rank(const ReplaySettings &settings) {
    const Context context = join("replay", settings.ranks);
    const Context meeting = join("replay barrier", settings.ranks);
    try {
        RankReplay replay(settings, context.get(), meeting.get());
        replay.run_all();
        replay.report();
    } catch (const Exit &exit) {
        odc_abort(meeting.get(), exit.message.c_str());
        odc_abort(context.get(), exit.message.c_str());
        throw;
    }
}

}  // namespace odc_tool

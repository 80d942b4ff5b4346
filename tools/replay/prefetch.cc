// SPDX-License-Identifier: Apache-2.0
// Measures communication alone, sets compute to the same time, and runs the arms in turn.
#include "replay/prefetch.h"

#include "cli/progress.h"
#include "rank/context.h"
#include "rank/routes.h"
#include "rank/statistics.h"
#include "replay/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

namespace odc_tool {
namespace {

constexpr size_t kTriedMinibatches = 3;  // to measure communication

struct Turn {
    const char *name;
    Schedule schedule;
    double compute;  // times the workload's
};
enum Turns : size_t { kCommunication, kWaiting, kPrefetching };
constexpr std::array<Turn, 3> kTurns{{
    {"communication alone", Schedule::Prefetching, 0},
    {"waiting for each call", Schedule::Waiting, 1},
    {"prefetching", Schedule::Prefetching, 1},
}};

Arm arm_of(const Turn &turn) { return {turn.schedule, ODC_LB_MINI}; }

// Assigns a minibatch's runs to turns: each turn has each place in the order.
size_t turn_at(size_t minibatch, size_t place) { return (minibatch + place) % kTurns.size(); }

RunRecord run_turn(ReplayJob &job, size_t minibatch, const Turn &turn) {
    return job.run(0, minibatch, arm_of(turn), turn.compute * job.workload.ns_per_cost, Detail::Times);
}

// The same on all ranks.
double slowest_ns(ReplayJob &job, const RunRecord &mine) {
    auto ns = double(mine.duration_ns);
    check(odc_all_reduce(job.barrier, &ns, 1, ODC_MAX));
    return ns;
}

// Sets the device's speed.
void fit_compute(ReplayJob &job) {
    const Turn &alone = kTurns[kCommunication];
    run_turn(job, 0, alone);  // connects ranks and allocates pages
    double ns = 0;
    double cost = 0;
    for (size_t i = 0; i < std::min(kTriedMinibatches, job.workload.count()); ++i) {
        ns += slowest_ns(job, run_turn(job, i, alone));
        cost += job.workload.expected(kOdcLbMini, i);
    }
    job.workload.ns_per_cost = job.settings.compute * ns / cost;
}

std::vector<RunRecord> run_turns(ReplayJob &job) {
    const size_t minibatches = job.workload.count();
    std::optional<Progress> progress;
    if (job.rank == 0) {
        progress.emplace(double(minibatches * kTurns.size()));
    }
    std::vector<RunRecord> records;
    for (size_t minibatch = 0; minibatch < minibatches; ++minibatch) {
        for (size_t place = 0; place < kTurns.size(); ++place) {
            const Turn &turn = kTurns[turn_at(minibatch, place)];
            if (progress) {
                progress->show(double(records.size()),
                               fmt::format("minibatch {}/{}  {}", minibatch + 1, minibatches, turn.name));
            }
            records.push_back(run_turn(job, minibatch, turn));
        }
    }
    return records;
}

// Seconds by minibatch.
struct Times {
    std::vector<double> ideal;
    std::array<std::vector<double>, kTurns.size()> turns;

    MedianInterval median(size_t turn) const { return median_interval(turns[turn]); }
    // The speed of a turn as a share of that of compute alone, and of the bound: the longer of compute and communication.
    MedianInterval share_of_ideal(size_t turn) const {
        return each([&](size_t i) { return ideal[i] / turns[turn][i]; });
    }
    MedianInterval share_of_longer(size_t turn) const {
        return each([&](size_t i) { return std::max(ideal[i], turns[kCommunication][i]) / turns[turn][i]; });
    }
    // The part of the time added by waiting that prefetching removes.
    MedianInterval hidden() const {
        return each(
            [&](size_t i) { return (turns[kWaiting][i] - turns[kPrefetching][i]) / (turns[kWaiting][i] - ideal[i]); });
    }
    MedianInterval speedup() const {
        return each([&](size_t i) { return turns[kWaiting][i] / turns[kPrefetching][i]; });
    }

private:
    template <class Ratio>
    MedianInterval each(const Ratio &ratio) const {
        std::vector<double> ratios;
        for (size_t i = 0; i < ideal.size(); ++i) {
            ratios.push_back(ratio(i));
        }
        return median_interval(ratios);
    }
};

Times times_of(const ReplayJob &job, const RunRecords &records) {
    Times times;
    size_t run = 0;
    for (size_t minibatch = 0; minibatch < job.workload.count(); ++minibatch) {
        times.ideal.push_back(job.workload.expected(kOdcLbMini, minibatch) * job.workload.ns_per_cost * 1e-9);
        for (size_t place = 0; place < kTurns.size(); ++place) {
            times.turns[turn_at(minibatch, place)].push_back(double(longest(records, run++)) * 1e-9);
        }
    }
    return times;
}

std::string interval_text(const MedianInterval &interval) {
    return fmt::format("{:.3f} ({:.3f} to {:.3f})", interval.median, interval.low, interval.high);
}

void print_prefetch_table(const Report &report, const Times &times, const std::string &routes) {
    fmt::print("{}\n{}\n{}\n", caption(report), workload_text(report), routes);
    fmt::print("{:<26}{:>16}{:>26}{:>26}\n", "odc + lb-mini", "ms a minibatch", "of the ideal", "of the longer");
    fmt::print("{:<26}{:>16.1f}\n", "compute alone, the ideal", 1e3 * median_interval(times.ideal).median);
    fmt::print("{:<26}{:>16.1f}\n", kTurns[kCommunication].name, 1e3 * times.median(kCommunication).median);
    for (const size_t turn : {kWaiting, kPrefetching}) {
        fmt::print("{:<26}{:>16.1f}{:>26}{:>26}\n", kTurns[turn].name, 1e3 * times.median(turn).median,
                   interval_text(times.share_of_ideal(turn)), interval_text(times.share_of_longer(turn)));
    }
    const MedianInterval hidden = times.hidden();
    const MedianInterval speedup = times.speedup();
    fmt::print(
        "\nprefetching hides {:.1f} % ({:.1f} to {:.1f}) of what waiting adds to compute and is {:.2f} times ({:.2f} to "
        "{:.2f}) as fast\n"
        "medians over the minibatches with their 95 % intervals; ideal: communication takes no time and the optimizer is\n"
        "left out; the longer: of compute and communication alone, which is prefetching without compute; every sum was "
        "exact\n",
        100 * hidden.median, 100 * hidden.low, 100 * hidden.high, speedup.median, speedup.low, speedup.high);
}

Json interval_json(const MedianInterval &interval) {
    return {{"median", interval.median}, {"low", interval.low}, {"high", interval.high}};
}

void print_prefetch_json(const Report &report, const Times &times, const std::vector<Route> &routes) {
    Json json;
    json["emulation"] = caption(report);
    json["settings"] = settings_json(report);
    json["settings"]["compute"] = report.settings.compute;
    json["routes"] = routes_json(routes);
    json["ideal_seconds"] = interval_json(median_interval(times.ideal));
    json["communication_seconds"] = interval_json(times.median(kCommunication));
    json["waiting"] = {{"seconds", interval_json(times.median(kWaiting))},
                       {"share_of_ideal", interval_json(times.share_of_ideal(kWaiting))},
                       {"share_of_longer", interval_json(times.share_of_longer(kWaiting))}};
    json["prefetching"] = {{"seconds", interval_json(times.median(kPrefetching))},
                           {"share_of_ideal", interval_json(times.share_of_ideal(kPrefetching))},
                           {"share_of_longer", interval_json(times.share_of_longer(kPrefetching))},
                           {"hidden", interval_json(times.hidden())},
                           {"speedup", interval_json(times.speedup())}};
    json["communication"] = communication_json(report);
    json["sums"] = "exact";
    fmt::print("{}\n", lines_text(json));
}

}  // namespace

void replay_prefetch(ReplayJob &job) {
    fit_compute(job);
    const std::vector<RunRecord> mine = run_turns(job);
    const RunRecords records = collect(job.context, "records", mine);
    const std::vector<RankTotals> totals = job.collect_totals();
    if (job.rank != 0) {
        return;
    }
    const Report report{job.settings, job.model, job.workload, job.layer_elements, totals, {}, {}};
    const Times times = times_of(job, records);
    const std::vector<Route> routes = routes_of(job.context);
    if (job.settings.json) {
        print_prefetch_json(report, times, routes);
    } else {
        print_prefetch_table(report, times, routes_text(0, routes));
    }
}

}  // namespace odc_tool

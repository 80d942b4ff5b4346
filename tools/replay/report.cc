// SPDX-License-Identifier: Apache-2.0
// Prints the result of `odc replay`, as text or JSON.
#include "replay/report.h"

#include "cli/machine_load.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

namespace odc_tool {
namespace {

constexpr double kNs = 1e-9;
// Their extremes are shown. A pair takes seconds, so the six of an interval would be too many to ask for.
constexpr size_t kLeastPairs = 3;
constexpr double kNearIdeal = 0.85;  // below it the emulation, not the schedule, is what is measured

RankTotals sum_of(const std::vector<RankTotals> &totals) {
    RankTotals sum{};
    for (const RankTotals &rank : totals) {
        sum.gather_bytes += rank.gather_bytes;
        sum.scatter_add_bytes += rank.scatter_add_bytes;
        sum.publish_wait_ns += rank.publish_wait_ns;
        sum.sync_wait_ns += rank.sync_wait_ns;
        sum.lock_wait_ns += rank.lock_wait_ns;
        sum.cpu_seconds += rank.cpu_seconds;
    }
    return sum;
}

const ArmReport &report_of(const std::vector<ArmReport> &reports, const Arm &arm) {
    return *std::find_if(reports.begin(), reports.end(), [&](const ArmReport &one) { return one.arm == arm; });
}

ArmReport make_arm_report(const Workload &workload, const RunRecords &records, size_t arm) {
    const std::vector<Run> runs = run_order(workload);
    ArmReport report{};
    report.arm = workload.arms[arm];
    report.rank_claimed.resize(records.size());
    int64_t seconds_ns = 0;
    int64_t busiest_ns = 0;  // rank of each run
    double compute = 0;
    double claimed = 0;
    std::vector<size_t> mine;
    for (size_t run = 0; run < runs.size(); ++run) {
        if (runs[run].arm != arm) {
            continue;
        }
        mine.push_back(run);
        int64_t compute_ns = 0;
        for (size_t rank = 0; rank < records.size(); ++rank) {
            const RunRecord &record = records[rank][run];
            compute += double(record.compute_ns);
            claimed += double(record.claimed_ns);
            report.rank_claimed[rank] += record.claimed;
            compute_ns = std::max(compute_ns, record.compute_ns);
        }
        busiest_ns += compute_ns;
        seconds_ns += longest(records, run);
    }
    for (size_t rank = 0; rank < records.size(); ++rank) {
        report.rank_idle.push_back(idle_share(records, mine, rank));
    }
    const auto samples = double(workload.samples);
    const double ns_per_cost = workload.ns_per_cost;
    report.idle = std::accumulate(report.rank_idle.begin(), report.rank_idle.end(), 0.0) / double(records.size());
    report.claimed = claimed / compute;
    report.samples_per_second = samples / (double(seconds_ns) * kNs);
    report.bound_samples_per_second = samples / (workload.bound(report.arm) * ns_per_cost * kNs);
    // The time without communication: of collectives that run a layer ahead by their plan, of ODC by what each rank computed.
    const double ideal_ns =
        report.arm.schedule == Schedule::Collective ? workload.expected(report.arm) * ns_per_cost : double(busiest_ns);
    report.ideal_samples_per_second = samples / (ideal_ns * kNs);
    if (workload.hosts) {
        report.network = network_report(workload, records, arm);
    }
    return report;
}

// A window's minibatches have the same samples in both orders.
size_t window_count(const ReplaySettings &settings, const Workload &workload) {
    const auto window = static_cast<size_t>(settings.lookahead);
    return (workload.count() + window - 1) / window;
}

}  // namespace

double idle_share(const RunRecords &records, const std::vector<size_t> &runs, size_t rank) {
    int64_t compute_ns = 0;
    int64_t duration_ns = 0;
    for (const size_t run : runs) {
        compute_ns += records[rank][run].compute_ns;
        duration_ns += longest(records, run);
    }
    return 1 - double(compute_ns) / double(duration_ns);
}

std::vector<ArmReport> make_arm_reports(const Workload &workload, const RunRecords &records) {
    std::vector<ArmReport> reports;
    for (size_t arm = 0; arm < workload.arms.size(); ++arm) {
        reports.push_back(make_arm_report(workload, records, arm));
    }
    const ArmReport base = report_of(reports, kBaseline);
    const double best_collective = report_of(reports, kBestCollective).samples_per_second;
    for (ArmReport &report : reports) {
        report.speedup = report.samples_per_second / base.samples_per_second;
        report.speedup_over_sorted_rows = report.samples_per_second / best_collective;
        report.ideal_speedup = report.ideal_samples_per_second / base.ideal_samples_per_second;
    }
    return reports;
}

MedianInterval speedup_over(const Arm &arm, const ReplaySettings &settings, const Workload &workload,
                            const RunRecords &records) {
    const std::vector<Run> runs = run_order(workload);
    const auto window = static_cast<size_t>(settings.lookahead);
    const size_t windows = window_count(settings, workload);
    std::vector<double> base(windows);
    std::vector<double> best(windows);
    for (size_t run = 0; run < runs.size(); ++run) {
        const auto duration = double(longest(records, run));
        if (workload.arms[runs[run].arm] == arm) {
            base[runs[run].minibatch / window] += duration;
        }
        if (workload.arms[runs[run].arm] == workload.arms.back()) {
            best[runs[run].minibatch / window] += duration;
        }
    }
    std::vector<double> speedups;
    for (size_t one = 0; one < windows; ++one) {
        speedups.push_back(base[one] / best[one]);
    }
    return median_interval(speedups);
}

namespace {

std::string idle_text(const Report &report) {
    return fmt::format("idle {:.0f} % -> {:.0f} %", report_of(report.arms, kBaseline).idle * 100,
                       report.arms.back().idle * 100);
}

using Speedups = std::vector<std::pair<Arm, MedianInterval>>;  // of the last arm over these

Speedups compared(const Report &report) {
    const Gain &gain = report.gain;
    Speedups speedups{{kBaseline, gain.speedup}, {kBestCollective, gain.speedup_over_sorted_rows}};
    if (report.settings.lookahead > 1) {
        speedups.emplace_back(report.workload.best_collective(), gain.speedup_over_same_order);
    }
    if (report.settings.claim > 0 || report.settings.hosts > 1) {
        speedups.emplace_back(report.workload.without_claims(), gain.speedup_over_static);
    }
    return speedups;
}

// Returns why the speedups say nothing about schedules; none if they do.
std::optional<std::string> doubt(const Report &report) {
    if (const auto why = why_not_resolved(report.gain.others)) {
        return why;
    }
    if (const size_t pairs = window_count(report.settings, report.workload); pairs < kLeastPairs) {
        return fmt::format("{} pairs are the least, and --minibatches and --lookahead leave {}: raise --minibatches",
                           kLeastPairs, pairs);
    }
    std::vector<ArmReport> all{report.arms.back()};
    for (const auto &[arm, speedup] : compared(report)) {
        all.push_back(report_of(report.arms, arm));
    }
    for (const ArmReport &arm : all) {
        if (!arm.network && arm.share_of_ideal() < kNearIdeal) {
            return fmt::format(
                "{} reached {:.0f} % of its own ideal, as these processors are too few or too slow for {} "
                "emulated ranks",
                arm_name(arm.arm), arm.share_of_ideal() * 100, report.totals.size());
        }
    }
    return std::nullopt;
}

std::string speedup_text(const Arm &arm, const MedianInterval &speedup) {
    return fmt::format("{:.2f} to {:.2f}x, median {:.2f}x, over {}", speedup.low, speedup.high, speedup.median,
                       arm_name(arm));
}

}  // namespace

std::string verdict(const Report &report) {
    if (const auto why = doubt(report)) {
        return "verdict: " + not_resolved(*why);
    }
    std::vector<std::string> texts;
    for (const auto &[arm, speedup] : compared(report)) {
        texts.push_back(speedup_text(arm, speedup));
    }
    return fmt::format("verdict: these lengths{}: {}; {}{}", report.settings.hosts > 1 ? " and links" : "",
                       fmt::join(texts, "; "), idle_text(report),
                       report.settings.uneven()
                           ? fmt::format("; {:.1f} % of the bound", report.arms.back().share_of_bound() * 100)
                           : "");
}

bool is_resolved(const Report &report) { return !doubt(report); }

std::string whole_run(const Report &report) {
    if (const auto why = doubt(report)) {
        return "The whole run: " + not_resolved(*why) + ".";
    }
    return fmt::format("The whole run: {}; {}.", speedup_text(kBaseline, report.gain.speedup), idle_text(report));
}

std::vector<PicturedRun> pictured_runs(const Report &report, const RunRecords &records) {
    const std::vector<Run> runs = run_order(report.workload);
    std::vector<int64_t> end_ns(report.workload.arms.size());
    std::vector<PicturedRun> pictured;
    for (size_t number = 0; number < runs.size() && runs[number].minibatch < kPicturedMinibatches; ++number) {
        const size_t arm = runs[number].arm;
        const int64_t longest_ns = longest(records, number);
        pictured.push_back({number, arm, end_ns[arm], longest_ns});
        end_ns[arm] += longest_ns;
    }
    return pictured;
}

std::string caption(const Report &report) {
    return fmt::format(
        "emulated device: compute is sleeping by the {} cost model, {:.3g} times as fast; communication is real, with "
        "1/{} of the bytes",
        report.model.name, 1e9 / report.workload.ns_per_cost, report.settings.scale);
}

std::string workload_text(const Report &report) {
    const Workload &workload = report.workload;
    return fmt::format(
        "{} ranks, {} samples a rank and minibatch, minibatches: {}; {} lengths, mean {:.0f}, longest {}, budget "
        "{} tokens, seed {}",
        report.totals.size(), report.settings.minibatch, workload.count(), workload.lengths, workload.mean_length,
        workload.longest, report.settings.max_tokens, report.settings.seed);
}

// What --noise, --slow and --claim do; nothing without them.
std::string devices_text(const ReplaySettings &settings) {
    std::vector<std::string> parts;
    if (settings.noise > 0) {
        parts.push_back(
            fmt::format("speeds differ by up to {:.3g} %, anew for each rank and minibatch", settings.noise * 100));
    }
    for (const SlowRank &slow : settings.slow) {
        parts.push_back(
            fmt::format("rank {} takes {:.3g} times as long{}", slow.rank, slow.factor,
                        slow.for_a_while() ? fmt::format(" in minibatches {} to {}", slow.first, slow.last) : ""));
    }
    if (settings.claim > 0) {
        parts.push_back(fmt::format("{} minibatches before, which do not count, measure the first speeds", kWarmUp));
    }
    return parts.empty() ? "" : fmt::format("devices: {}\n", fmt::join(parts, "; "));
}

size_t name_width(const Report &report) {
    size_t width = 0;
    for (const ArmReport &arm : report.arms) {
        width = std::max(width, arm_name(arm.arm).size());
    }
    return width;
}

void print_network_rows(const Report &report) {
    const size_t width = name_width(report);
    const double scale = double(report.model.layer_elements) / double(report.layer_elements);
    fmt::print("\n{:<{}}{}\n", "", width, network_header());
    for (const ArmReport &arm : report.arms) {
        fmt::print("{:<{}}{}\n", arm_name(arm.arm), width, network_row(*arm.network, scale));
    }
}

void print_rows(const Report &report) {
    const bool uneven = report.settings.uneven();
    const size_t width = name_width(report);
    const bool resolved = is_resolved(report);
    const auto gain = [&](double speedup) { return resolved ? fmt::format("{:.2f}x", speedup) : "-"; };
    fmt::print("{:<{}}{:>11}{:>27}\n", "", width, "", "speedup over collective +");
    fmt::print("{:<{}}{:>11}{:>10}{:>13}{:>8}{:>14}{}\n", "schedule + policy", width, "samples/s", "lb-micro",
               "sorted-rows", "idle", "of own ideal", uneven ? "  of bound   claimed" : "");
    for (const ArmReport &arm : report.arms) {
        fmt::print("{:<{}}{:>11.2f}{:>10}{:>13}{:>6.1f} %{:>12.1f} %", arm_name(arm.arm), width, arm.samples_per_second,
                   gain(arm.speedup), gain(arm.speedup_over_sorted_rows), arm.idle * 100, arm.share_of_ideal() * 100);
        if (uneven) {
            fmt::print("{:>8.1f} %{:>8.1f} %", arm.share_of_bound() * 100, arm.claimed * 100);
        }
        fmt::print("\n");
    }
}

void print_table(const Report &report) {
    const RankTotals sum = sum_of(report.totals);
    const bool hosts = report.settings.hosts > 1;
    fmt::print("{}\n{}{}\n{}\n", caption(report),
               hosts ? network_text(report.settings, report.totals.size()) + "\n" : "", workload_text(report),
               devices_text(report.settings));
    print_rows(report);
    if (hosts) {
        print_network_rows(report);
    }
    fmt::print(
        "\nideal: communication takes no time, the optimizer is left out, and collectives run a layer ahead; idle: not\n"
        "computing, mean over ranks\n");
    if (hosts) {
        fmt::print("{}", network_legend());
    }
    if (report.settings.uneven()) {
        fmt::print(
            "bound: a minibatch's cost at the speeds of all ranks together, or its costliest sample at the speed of the\n"
            "fastest rank, whichever takes longer; claimed: of the compute time\n");
    }
    fmt::print(
        "{:.1f} GB gathered and {:.1f} GB added in {} layers of {} elements{}; every sum equals the model's, "
        "in both schedules\n",
        double(sum.gather_bytes) * 1e-9, double(sum.scatter_add_bytes) * 1e-9, report.model.layers,
        report.layer_elements, report.settings.sum == ODC_SUM_EXACT ? " by exact sums" : "");
    if (report.settings.lookahead > 1) {
        const Exchanged &exchanged = report.workload.exchanged;
        fmt::print(
            "lookahead {}: {:.1f} % of the samples moved, by {:.2f} minibatches in the mean over all; variation of a "
            "minibatch's tokens {:.2f}, before {:.2f}\n",
            report.settings.lookahead, exchanged.moved * 100, exchanged.displacement, exchanged.token_variation,
            exchanged.token_variation_before);
    }
    if (report.gain.repeated > 0) {
        fmt::print("other programs used {:.0f} % of the processors, pairs repeated: {}\n",
                   report.gain.others.value_or(0) * 100, report.gain.repeated);
    }
    fmt::print("\n{}\n", verdict(report));
}

std::string lengths_name(const ReplaySettings &settings) {
    if (!settings.corpus.empty()) {
        return settings.corpus;
    }
    return settings.lengths.empty() ? "built in" : settings.lengths;
}

Json settings_json(const Report &report) {
    const ReplaySettings &settings = report.settings;
    const Workload &workload = report.workload;
    return {{"lengths", lengths_name(settings)},
            {"samples_known", workload.lengths},
            {"mean_length", workload.mean_length},
            {"longest", workload.longest},
            {"model", report.model.name},
            {"layers", report.model.layers},
            {"layer_elements", report.layer_elements},
            {"scale", settings.scale},
            {"exact", settings.sum == ODC_SUM_EXACT},
            {"cost", {{"a", report.model.cost.a}, {"b", report.model.cost.b}}},
            {"time_compression", 1e9 / workload.ns_per_cost},
            {"ranks", report.totals.size()},
            {"minibatch", settings.minibatch},
            {"minibatches", workload.count()},
            {"lookahead", settings.lookahead},
            {"max_tokens", settings.max_tokens},
            {"seed", settings.seed}};
}

Json communication_json(const Report &report) {
    const RankTotals sum = sum_of(report.totals);
    return {{"gather_bytes", sum.gather_bytes},
            {"scatter_add_bytes", sum.scatter_add_bytes},
            {"publish_wait_seconds", double(sum.publish_wait_ns) * kNs},
            {"sync_wait_seconds", double(sum.sync_wait_ns) * kNs},
            {"lock_wait_seconds", double(sum.lock_wait_ns) * kNs},
            {"cpu_seconds", sum.cpu_seconds}};
}

// The settings, with those that --prefetch does not use.
Json arms_settings_json(const Report &report) {
    const ReplaySettings &settings = report.settings;
    const Workload &workload = report.workload;
    Json json = settings_json(report);
    json["seconds"] = settings.seconds;
    if (settings.hosts > 1) {
        json["hosts"] = settings.hosts;
        json["bandwidth"] = settings.bandwidth;
    }
    if (settings.uneven()) {
        json["noise"] = settings.noise;
        json["claim"] = settings.claim;
        json["warm_up"] = workload.warm_up;
        json["device_speeds"] =
            std::vector(workload.speeds.begin(), workload.speeds.begin() + std::ptrdiff_t(workload.count()));
    }
    return json;
}

// `resolution`: whether speedups say something about schedules.
Json arm_json(const Report &report, const ArmReport &arm, const Json &resolution) {
    Json json{{"schedule", schedule_name(arm.arm.schedule)},
              {"policy", policy_name(arm.arm.policy)},
              {"lookahead", arm.arm.order == Order::Lookahead ? report.settings.lookahead : 1},
              {"speeds", arm.arm.speeds == Speeds::Measured ? "measured" : "equal"},
              {"tail", arm.arm.tail},
              {"seconds", double(report.workload.samples) / arm.samples_per_second},
              {"samples_per_second", arm.samples_per_second},
              {"ideal_samples_per_second", arm.ideal_samples_per_second},
              {"share_of_ideal", arm.share_of_ideal()},
              {"bound_samples_per_second", arm.bound_samples_per_second},
              {"share_of_bound", arm.share_of_bound()},
              {"speedup", arm.speedup},
              {"speedup_over_sorted_rows", arm.speedup_over_sorted_rows},
              {"ideal_speedup", arm.ideal_speedup},
              {"idle", arm.idle},
              {"rank_idle", arm.rank_idle},
              {"claimed", arm.claimed},
              {"rank_claimed", arm.rank_claimed}};
    json.update(resolution);
    if (arm.network) {
        json["between_hosts"] = crossing_name(arm.arm.crossing());
        json["network"] = network_json(*arm.network);
    }
    return json;
}

Json exchanged_json(const Exchanged &exchanged) {
    return {{"moved", exchanged.moved},
            {"displacement", exchanged.displacement},
            {"token_variation", exchanged.token_variation},
            {"token_variation_before", exchanged.token_variation_before}};
}

// Of the last arm over others, by name.
Json speedups_json(const Report &report, const Json &resolution) {
    const Gain &gain = report.gain;
    const auto interval_json = [&](const MedianInterval &of) {
        Json interval{{"median", of.median}, {"low", of.low}, {"high", of.high}};
        interval.update(resolution);
        return interval;
    };
    Json json{{"speedup", interval_json(gain.speedup)},
              {"speedup_over_sorted_rows", interval_json(gain.speedup_over_sorted_rows)}};
    if (report.settings.lookahead > 1) {
        json["speedup_over_same_order"] = interval_json(gain.speedup_over_same_order);
    }
    if (report.settings.claim > 0) {
        json["speedup_over_static"] = interval_json(gain.speedup_over_static);
    }
    if (report.settings.hosts > 1) {
        json["speedup_over_flat"] = interval_json(gain.speedup_over_static);
    }
    return json;
}

void print_json(const Report &report) {
    Json json;
    json["emulation"] = caption(report);
    if (report.settings.hosts > 1) {
        json["network_emulation"] = network_text(report.settings, report.totals.size());
    }
    json["settings"] = arms_settings_json(report);
    json["arms"] = Json::array();
    const Json resolution = resolution_json(doubt(report));
    for (const ArmReport &arm : report.arms) {
        json["arms"].push_back(arm_json(report, arm, resolution));
    }
    if (report.settings.lookahead > 1) {
        json["exchanged"] = exchanged_json(report.workload.exchanged);
    }
    json.update(speedups_json(report, resolution));
    json["others_cpu_share"] = report.gain.others ? Json(*report.gain.others) : Json();
    json["pairs_repeated"] = report.gain.repeated;
    json["verdict"] = verdict(report);
    json["communication"] = communication_json(report);
    json["sums"] = "exact";
    fmt::print("{}\n", lines_text(json));
}

}  // namespace odc_tool

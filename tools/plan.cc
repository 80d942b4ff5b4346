// SPDX-License-Identifier: Apache-2.0
// `odc plan`: which rank runs which samples in which microbatches, of one minibatch or of several planned together, as a table or
// as JSON.
#include "cli/exit.h"
#include "cli/json.h"
#include "cli/lengths.h"
#include "cli/number_options.h"
#include "cli/plan_options.h"
#include "cli/verbs.h"

#include <odc/odc.h>
#include <CLI/CLI.hpp>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace odc_tool {

namespace {

enum class Format { Table, Json };

struct PlanOptions {
    std::string file;
    int32_t ranks = 0;
    uint64_t max_tokens = 65536;
    std::string policy = "lb-mini";
    std::string cost = "linear";
    int32_t lookahead = 1;
    WindowOptions window;
    std::vector<double> speeds;  // of each rank; empty: equal
    double tail = 0;
    Format format = Format::Table;
};

struct RankPlan {
    std::vector<std::vector<uint64_t>> microbatches;  // of samples: 0-based lines of the file
    uint64_t samples = 0;
    double tokens = 0;  // their sum might overflow 64 bits
    double cost = 0;
};

struct MinibatchPlan {
    std::vector<RankPlan> ranks;
    RankPlan tail;  // left to be claimed; its microbatches are the items

    double makespan() const {
        double most = 0;
        for (const RankPlan &rank : ranks) {
            most = std::max(most, rank.cost);
        }
        return most;
    }
};

odc_plan_request request_of(const PlanOptions &options, const std::vector<uint64_t> &lengths, const Cost &cost) {
    odc_plan_request request =
        plan_request(lengths, options.max_tokens, cost, options.ranks, parse_policy(options.policy));
    request.speeds = options.speeds.empty() ? nullptr : options.speeds.data();
    request.tail = options.tail;
    return request;
}

// The minibatch, the rank and the microbatch of each sample.
class Assignment {
public:
    explicit Assignment(size_t samples) : minibatch_of(samples), rank_of(samples), microbatch_of(samples) {}

    std::vector<MinibatchPlan> plans(const PlanOptions &options, const std::vector<uint64_t> &lengths,
                                     const Cost &cost) const {
        std::vector<MinibatchPlan> plans(static_cast<size_t>(options.lookahead));
        for (MinibatchPlan &plan : plans) {
            plan.ranks.resize(static_cast<size_t>(options.ranks));
        }
        for (size_t i = 0; i < lengths.size(); ++i) {
            MinibatchPlan &plan = plans[static_cast<size_t>(minibatch_of[i])];
            RankPlan &rank = rank_of[i] < 0 ? plan.tail : plan.ranks[static_cast<size_t>(rank_of[i])];
            const auto microbatch = static_cast<size_t>(microbatch_of[i]);
            if (rank.microbatches.size() <= microbatch) {
                rank.microbatches.resize(microbatch + 1);
            }
            rank.microbatches[microbatch].push_back(i);
            rank.samples += 1;
            rank.tokens += static_cast<double>(lengths[i]);
            rank.cost += cost.of(lengths[i]);
        }
        return plans;
    }

    std::vector<int32_t> minibatch_of;  // all 0 without a window
    std::vector<int32_t> rank_of;
    std::vector<int32_t> microbatch_of;
};

Json ranks_json(const MinibatchPlan &plan) {
    Json out = Json::array();
    for (const RankPlan &rank : plan.ranks) {
        out.push_back({{"cost", rank.cost}, {"microbatches", rank.microbatches}});
    }
    return out;
}

void print_row(const std::string &rank, const RankPlan &plan, const std::string &rest) {
    fmt::print("{:>5} {:>8} {:>13} {:>12.0f} {:>12.6g} {}\n", rank, plan.samples, plan.microbatches.size(), plan.tokens,
               plan.cost, rest);
}

// Idle until the makespan, or free to claim.
void print_table(const PlanOptions &options, const MinibatchPlan &plan, double makespan) {
    fmt::print("{:>5} {:>8} {:>13} {:>12} {:>12} {:>7}\n", "rank", "samples", "microbatches", "tokens", "cost",
               options.tail > 0 ? "free" : "idle");
    double mean = 0;
    for (const double speed : options.speeds) {
        mean += speed / static_cast<double>(options.speeds.size());
    }
    for (size_t i = 0; i < plan.ranks.size(); ++i) {
        const double time = plan.ranks[i].cost / (options.speeds.empty() ? 1 : options.speeds[i] / mean);
        print_row(std::to_string(i), plan.ranks[i], fmt::format("{:>6.2f}%", 100 * std::max(0.0, 1 - time / makespan)));
    }
    if (options.tail > 0) {
        print_row("tail", plan.tail, "to claim");
    }
}

void plan_minibatch(const PlanOptions &options, const std::vector<uint64_t> &lengths) {
    const Cost cost = parse_cost(options.cost);
    const odc_plan_request request = request_of(options, lengths, cost);
    Assignment made(lengths.size());
    odc_plan_summary summary{};
    summary.struct_size = sizeof(summary);
    if (odc_plan(&request, made.rank_of.data(), made.microbatch_of.data(), &summary) != ODC_OK) {
        throw Exit{2, odc_last_error()};
    }
    const MinibatchPlan plan = made.plans(options, lengths, cost)[0];
    if (options.format == Format::Json) {
        Json out = {{"policy", options.policy},
                    {"makespan", summary.makespan},
                    {"lower_bound", summary.lower_bound},
                    {"collective_makespan", summary.collective_makespan},
                    {"ranks", ranks_json(plan)}};
        if (options.tail > 0) {
            out["items"] = plan.tail.microbatches;
        }
        fmt::print("{}\n", line_text(out));
        return;
    }
    print_table(options, plan, summary.makespan);
    const double bound = summary.lower_bound;
    fmt::print("{}: makespan {:.6g}, {:.3f} times the lower bound {:.6g}", options.policy, summary.makespan,
               summary.makespan / bound, bound);
    if (options.tail > 0) {
        fmt::print(", if ranks are as fast as planned and whoever is done first claims\n");
    } else {
        fmt::print("; by collectives {:.6g}, {:.3f} times\n", summary.collective_makespan,
                   summary.collective_makespan / bound);
    }
}

// The time of a window by the best plan for collectives of the same samples in each minibatch; none where there is none.
std::optional<double> sorted_rows_makespan(const PlanOptions &options, const std::vector<uint64_t> &lengths,
                                           const std::vector<int32_t> &minibatch_of, const Cost &cost) {
    double makespan = 0;
    for (int32_t minibatch = 0; minibatch < options.lookahead; ++minibatch) {
        std::vector<uint64_t> samples;
        for (size_t i = 0; i < lengths.size(); ++i) {
            if (minibatch_of[i] == minibatch) {
                samples.push_back(lengths[i]);
            }
        }
        const odc_plan_request request =
            plan_request(samples, options.max_tokens, cost, options.ranks, ODC_SORTED_ROWS);
        Assignment made(samples.size());
        odc_plan_summary summary{};
        summary.struct_size = sizeof(summary);
        if (odc_plan(&request, made.rank_of.data(), made.microbatch_of.data(), &summary) != ODC_OK) {
            return std::nullopt;
        }
        makespan += summary.collective_makespan;
    }
    return makespan;
}

struct Window {
    odc_window_summary summary;
    std::vector<MinibatchPlan> plans;
    std::optional<double> sorted_rows;         // makespan
    std::optional<double> sorted_rows_before;  // in the order of the data
};

Json number_or_null(const std::optional<double> &number) { return number ? Json(*number) : Json(nullptr); }

void print_window_json(const PlanOptions &options, const Window &window) {
    const odc_window_summary &summary = window.summary;
    Json out = {{"policy", options.policy},
                {"lookahead", options.lookahead},
                {"makespan", summary.makespan},
                {"makespan_before", summary.makespan_before},
                {"collective_makespan", summary.collective_makespan},
                {"collective_makespan_before", summary.collective_makespan_before},
                {"sorted_rows_makespan", number_or_null(window.sorted_rows)},
                {"sorted_rows_makespan_before", number_or_null(window.sorted_rows_before)},
                {"lower_bound", summary.lower_bound},
                {"moved", summary.moved},
                {"displacement", summary.displacement},
                {"token_variation", summary.token_variation},
                {"token_variation_before", summary.token_variation_before},
                {"tokens", summary.tokens},
                {"minibatches", Json::array()}};
    for (const MinibatchPlan &plan : window.plans) {
        out["minibatches"].push_back({{"makespan", plan.makespan()}, {"ranks", ranks_json(plan)}});
    }
    fmt::print("{}\n", line_text(out));
}

void print_window_table(const PlanOptions &options, const Window &window) {
    const odc_window_summary &summary = window.summary;
    const std::vector<MinibatchPlan> &plans = window.plans;
    fmt::print("{:>9} {:>8} {:>12} {:>12} {:>12} {:>7}\n", "minibatch", "samples", "tokens", "cost", "makespan",
               "idle");
    for (size_t i = 0; i < plans.size(); ++i) {
        RankPlan all;
        for (const RankPlan &rank : plans[i].ranks) {
            all.samples += rank.samples;
            all.tokens += rank.tokens;
            all.cost += rank.cost;
        }
        const double makespan = plans[i].makespan();
        const double idle = 100 * std::max(0.0, 1 - all.cost / (makespan * static_cast<double>(options.ranks)));
        fmt::print("{:>9} {:>8} {:>12.0f} {:>12.6g} {:>12.6g} {:>6.2f}%\n", i, all.samples, all.tokens, all.cost,
                   makespan, idle);
    }
    const double bound = summary.lower_bound;
    fmt::print(
        "{}, lookahead {}: makespan {:.6g}, {:.3f} times the lower bound {:.6g}; each minibatch by itself {:.6g}, "
        "{:.3f} times\n",
        options.policy, options.lookahead, summary.makespan, summary.makespan / bound, bound, summary.makespan_before,
        summary.makespan_before / bound);
    fmt::print("this plan by collectives {:.6g}, {:.3f} times; each by itself {:.6g}, {:.3f} times\n",
               summary.collective_makespan, summary.collective_makespan / bound, summary.collective_makespan_before,
               summary.collective_makespan_before / bound);
    if (window.sorted_rows && window.sorted_rows_before) {
        fmt::print(
            "the best for collectives, sorted-rows in the same order {:.6g}, {:.3f} times; each by itself {:.6g}, {:.3f} "
            "times\n",
            *window.sorted_rows, *window.sorted_rows / bound, *window.sorted_rows_before,
            *window.sorted_rows_before / bound);
    }
    fmt::print(
        "moved: {:.1f} % of the samples, by {:.2f} minibatches in the mean over all; variation of a minibatch's "
        "tokens {:.2f}, before {:.2f}\n",
        100 * summary.moved, summary.displacement, summary.token_variation, summary.token_variation_before);
}

// As many samples for each minibatch; the last one may have fewer.
void plan_lookahead(const PlanOptions &options, const std::vector<uint64_t> &lengths) {
    const auto minibatches = static_cast<uint64_t>(options.lookahead);
    const uint64_t each = (lengths.size() + minibatches - 1) / minibatches;
    std::vector<uint64_t> counts;
    for (uint64_t begin = 0; begin < lengths.size(); begin += each) {
        counts.push_back(std::min<uint64_t>(each, lengths.size() - begin));
    }
    if (counts.size() < minibatches) {
        throw Exit{
            2, fmt::format("{} samples do not fill {} minibatches; lower --lookahead", lengths.size(), minibatches)};
    }
    const Cost cost = parse_cost(options.cost);
    const odc_plan_request samples = request_of(options, lengths, cost);
    odc_window_request request = options.window.request();
    request.samples = &samples;
    request.counts = counts.data();
    request.minibatches = options.lookahead;
    Assignment made(lengths.size());
    Window window{};
    window.summary.struct_size = sizeof(window.summary);
    if (odc_plan_window(&request, made.minibatch_of.data(), made.rank_of.data(), made.microbatch_of.data(),
                        &window.summary) != ODC_OK) {
        throw Exit{2, odc_last_error()};
    }
    window.plans = made.plans(options, lengths, cost);
    std::vector<int32_t> given(lengths.size());
    for (size_t i = 0; i < given.size(); ++i) {
        given[i] = static_cast<int32_t>(i / each);
    }
    window.sorted_rows = sorted_rows_makespan(options, lengths, made.minibatch_of, cost);
    window.sorted_rows_before = sorted_rows_makespan(options, lengths, given, cost);
    if (options.format == Format::Json) {
        print_window_json(options, window);
    } else {
        print_window_table(options, window);
    }
}

void run_plan(const PlanOptions &options) {
    if (!options.speeds.empty() && options.speeds.size() != static_cast<size_t>(options.ranks)) {
        throw Exit{2, fmt::format("--speeds has {} numbers, but there are {} ranks; give one for each",
                                  options.speeds.size(), options.ranks)};
    }
    const std::vector<uint64_t> lengths = read_lengths(options.file, options.max_tokens);
    if (options.lookahead == 1) {
        plan_minibatch(options, lengths);
    } else {
        plan_lookahead(options, lengths);
    }
}

}  // namespace

void add_plan(CLI::App &app) {
    CLI::App *verb = app.add_subcommand("plan", "Divide the samples of a minibatch over ranks and microbatches");
    auto options = std::make_shared<PlanOptions>();
    verb->add_option("FILE", options->file, "Tokens of each sample, one number per line; - reads standard input")
        ->type_name("")  // completion offers files for the name FILE
        ->required();
    add_whole(verb, "--ranks", options->ranks, {1, 1 << 20}, "Number of ranks")->required();
    add_whole(verb, "--max-tokens", options->max_tokens, kTokens, "Budget of a microbatch, in tokens");
    verb->add_option(
            "--policy", options->policy,
            "local-sort; lb-micro (equal counts, for collectives); lb-mini (free counts, for ODC); sorted-rows (the best "
            "for collectives)")
        ->type_name("{local-sort,lb-micro,lb-mini,sorted-rows}")
        ->capture_default_str();
    verb->add_option("--cost", options->cost, "A name, or A,B: s tokens cost A*x*x + B*x, x = s/32000")
        ->type_name("{linear,1.5b,7b}")
        ->capture_default_str();
    CLI::Option *lookahead =
        add_whole(verb, "--lookahead", options->lookahead, {1, 16},
                  "FILE has the samples of so many minibatches, one after another: plan them together");
    add_window_options(verb, options->window, lookahead);
    verb->add_option("--speeds", options->speeds, "Of each rank, relative: 1,1,0.5 (lb-mini)")
        ->delimiter(',')
        ->type_name("S,...")
        ->excludes(lookahead);
    add_real(verb, "--tail", options->tail, {0, 1},
             "Share of the cost, the cheapest samples, that is left to be claimed (lb-mini)")
        ->default_str("")
        ->excludes(lookahead);
    verb->add_flag_callback(
        "--json", [options] { options->format = Format::Json; }, "Print JSON");
    verb->callback([options] { run_plan(*options); });
}

}  // namespace odc_tool

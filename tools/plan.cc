// SPDX-License-Identifier: Apache-2.0
// `odc plan`: which rank runs which samples in which microbatches, as a table or as JSON.
#include "cli/exit.h"
#include "cli/lengths.h"
#include "cli/numbers.h"
#include "cli/plan_options.h"
#include "cli/verbs.h"

#include <odc/odc.h>
#include <CLI/CLI.hpp>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
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
    Format format = Format::Table;
};

struct RankPlan {
    std::vector<std::vector<uint64_t>> microbatches;  // of samples: 0-based lines of the file
    uint64_t samples = 0;
    double tokens = 0;  // their sum might overflow 64 bits
    double cost = 0;
};

struct MadePlan {
    odc_plan_summary summary;
    std::vector<RankPlan> ranks;
};

MadePlan make_plan(const PlanOptions &options, const std::vector<uint64_t> &lengths) {
    const Cost cost = parse_cost(options.cost);
    odc_plan_request request{};
    request.struct_size = sizeof(request);
    request.lengths = lengths.data();
    request.count = lengths.size();
    request.max_tokens = options.max_tokens;
    request.a = cost.a;
    request.b = cost.b;
    request.ranks = options.ranks;
    request.policy = parse_policy(options.policy);
    std::vector<int32_t> rank_of(lengths.size());
    std::vector<int32_t> microbatch_of(lengths.size());
    MadePlan plan{};
    plan.summary.struct_size = sizeof(plan.summary);
    if (odc_plan(&request, rank_of.data(), microbatch_of.data(), &plan.summary) != ODC_OK) {
        throw Exit{2, odc_last_error()};
    }
    plan.ranks.resize(static_cast<size_t>(options.ranks));
    for (size_t i = 0; i < lengths.size(); ++i) {
        RankPlan &rank = plan.ranks[static_cast<size_t>(rank_of[i])];
        const auto microbatch = static_cast<size_t>(microbatch_of[i]);
        if (rank.microbatches.size() <= microbatch) {
            rank.microbatches.resize(microbatch + 1);
        }
        rank.microbatches[microbatch].push_back(i);
        rank.samples += 1;
        rank.tokens += static_cast<double>(lengths[i]);
        rank.cost += cost.of(lengths[i]);
    }
    return plan;
}

void print_json(const MadePlan &plan, const std::string &policy) {
    nlohmann::ordered_json out = {{"policy", policy},
                                  {"makespan", plan.summary.makespan},
                                  {"lower_bound", plan.summary.lower_bound},
                                  {"ranks", nlohmann::ordered_json::array()}};
    for (const RankPlan &rank : plan.ranks) {
        out["ranks"].push_back({{"cost", rank.cost}, {"microbatches", rank.microbatches}});
    }
    fmt::print("{}\n", out.dump());
}

void print_table(const MadePlan &plan, const std::string &policy) {
    const double makespan = plan.summary.makespan;
    fmt::print("{:>5} {:>8} {:>13} {:>12} {:>12} {:>7}\n", "rank", "samples", "microbatches", "tokens", "cost", "idle");
    for (size_t i = 0; i < plan.ranks.size(); ++i) {
        const RankPlan &rank = plan.ranks[i];
        const double idle = 100 * std::max(0.0, 1 - rank.cost / makespan);
        fmt::print("{:>5} {:>8} {:>13} {:>12.0f} {:>12.6g} {:>6.2f}%\n", i, rank.samples, rank.microbatches.size(),
                   rank.tokens, rank.cost, idle);
    }
    fmt::print("{}: makespan {:.6g}, {:.3f} times the lower bound {:.6g}\n", policy, makespan,
               makespan / plan.summary.lower_bound, plan.summary.lower_bound);
}

void run_plan(const PlanOptions &options) {
    const MadePlan plan = make_plan(options, read_lengths(options.file, options.max_tokens));
    if (options.format == Format::Json) {
        print_json(plan, options.policy);
    } else {
        print_table(plan, options.policy);
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
    verb->add_option("--policy", options->policy,
                     "local-sort; lb-micro (equal counts, for collectives); lb-mini (free counts, for ODC)")
        ->type_name("{local-sort,lb-micro,lb-mini}")
        ->capture_default_str();
    verb->add_option("--cost", options->cost, "A name, or A,B: s tokens cost A*x*x + B*x, x = s/32000")
        ->type_name("{linear,1.5b,7b}")
        ->capture_default_str();
    verb->add_flag_callback(
        "--json", [options] { options->format = Format::Json; }, "Print JSON");
    verb->callback([options] { run_plan(*options); });
}

}  // namespace odc_tool

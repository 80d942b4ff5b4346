// SPDX-License-Identifier: Apache-2.0
// Cost models and policies by name.
#include "cli/plan_options.h"

#include "cli/exit.h"
#include "cli/number_options.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

namespace odc_tool {

namespace {

struct Policy {
    const char *name;
    int32_t value;
};
constexpr std::array<Policy, 4> kPolicies = {{
    {"local-sort", ODC_LOCAL_SORT},
    {"lb-micro", ODC_LB_MICRO},
    {"lb-mini", ODC_LB_MINI},
    {"sorted-rows", ODC_SORTED_ROWS},
}};

bool parse_coefficient(std::string_view text, double &out) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return error == std::errc() && end == text.data() + text.size() && std::isfinite(out) && out >= 0;
}

}  // namespace

Cost parse_cost(const std::string &text) {
    Cost cost{};
    if (odc_plan_cost(text.c_str(), &cost.a, &cost.b) == ODC_OK) {
        return cost;
    }
    const size_t comma = text.find(',');
    const std::string_view all = text;
    if (comma == std::string::npos || !parse_coefficient(all.substr(0, comma), cost.a) ||
        !parse_coefficient(all.substr(comma + 1), cost.b) || (cost.a == 0 && cost.b == 0)) {
        throw Exit{
            2, fmt::format("--cost {}: give linear, 1.5b, 7b, or two numbers A,B that are not negative nor both zero "
                           "(a sample of s tokens costs A*x*x + B*x, x = s/32000)",
                           text)};
    }
    return cost;
}

int32_t parse_policy(const std::string &name) {
    for (const Policy &policy : kPolicies) {
        if (name == policy.name) {
            return policy.value;
        }
    }
    throw Exit{2, fmt::format("--policy {}: give local-sort, lb-micro, lb-mini or sorted-rows", name)};
}

odc_plan_request plan_request(const std::vector<uint64_t> &lengths, uint64_t max_tokens, const Cost &cost,
                              int32_t ranks, int32_t policy) {
    odc_plan_request request{};
    request.struct_size = sizeof(request);
    request.lengths = lengths.data();
    request.count = lengths.size();
    request.max_tokens = max_tokens;
    request.a = cost.a;
    request.b = cost.b;
    request.ranks = ranks;
    request.policy = policy;
    return request;
}

odc_window_request WindowOptions::request() const {
    odc_window_request request{};
    request.struct_size = sizeof(request);
    request.order = sorted ? ODC_WINDOW_SORTED : ODC_WINDOW_EXCHANGED;
    request.most_moved = most_moved;
    request.most_displacement = most_displacement;
    return request;
}

void add_window_options(CLI::App *verb, WindowOptions &options, CLI::Option *lookahead) {
    CLI::Option *moved = add_real(verb, "--most-moved", options.most_moved, {0.001, 1},
                                  "Share of the samples that may change their minibatch");
    CLI::Option *displacement = add_real(verb, "--most-displacement", options.most_displacement, {0.001, 16},
                                         "By how many minibatches a sample may move, mean over all");
    CLI::Option *sorted =
        verb->add_flag("--sorted", options.sorted, "All samples of the window by cost, instead of a few exchanges");
    for (CLI::Option *option : {moved, displacement, sorted}) {
        option->needs(lookahead);
    }
    sorted->excludes(moved)->excludes(displacement);
}

const char *policy_name(int32_t policy) {
    for (const Policy &known : kPolicies) {
        if (policy == known.value) {
            return known.name;
        }
    }
    return "unknown";
}

}  // namespace odc_tool

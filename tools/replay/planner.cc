// SPDX-License-Identifier: Apache-2.0
// Turns the planner's answers into microbatches and windows.
#include "replay/planner.h"

#include "cli/exit.h"

#include <algorithm>

namespace odc_tool {

std::vector<uint64_t> Planner::tokens_of(const std::vector<size_t> &samples) const {
    std::vector<uint64_t> tokens;
    for (const size_t sample : samples) {
        tokens.push_back(lengths_[sample]);
    }
    return tokens;
}

Plan Planner::plan(const std::vector<size_t> &samples, int32_t policy, const std::vector<double> &speeds,
                   double tail) const {
    const std::vector<uint64_t> tokens = tokens_of(samples);
    odc_plan_request request = plan_request(tokens, settings_.max_tokens, cost_, ranks_, policy);
    request.speeds = speeds.empty() ? nullptr : speeds.data();
    request.tail = tail;
    std::vector<int32_t> rank_of(samples.size());
    std::vector<int32_t> microbatch_of(samples.size());
    if (odc_plan(&request, rank_of.data(), microbatch_of.data(), nullptr) != ODC_OK) {
        throw Exit{2, odc_last_error()};
    }
    Plan plan;
    plan.ranks.resize(static_cast<size_t>(ranks_));
    for (size_t i = 0; i < samples.size(); ++i) {
        auto &microbatches = rank_of[i] < 0 ? plan.items : plan.ranks[static_cast<size_t>(rank_of[i])];
        const auto place = static_cast<size_t>(microbatch_of[i]);
        microbatches.resize(std::max(microbatches.size(), place + 1));
        microbatches[place].cost += cost_.of(tokens[i]);
        microbatches[place].gradient.add_sample(samples[i]);
    }
    return plan;
}

std::vector<std::vector<size_t>> Planner::exchanged(const std::vector<std::vector<size_t>> &window,
                                                    odc_window_summary &summary) const {
    std::vector<size_t> samples;
    for (const std::vector<size_t> &minibatch : window) {
        samples.insert(samples.end(), minibatch.begin(), minibatch.end());
    }
    const std::vector<uint64_t> tokens = tokens_of(samples);
    const odc_plan_request plan = plan_request(tokens, settings_.max_tokens, cost_, ranks_, ODC_LB_MINI);
    odc_window_request request = settings_.window.request();
    request.samples = &plan;
    request.minibatches = static_cast<int32_t>(window.size());
    std::vector<int32_t> minibatch_of(samples.size());
    std::vector<int32_t> rank_of(samples.size());
    std::vector<int32_t> microbatch_of(samples.size());
    summary.struct_size = sizeof summary;
    if (odc_plan_window(&request, minibatch_of.data(), rank_of.data(), microbatch_of.data(), &summary) != ODC_OK) {
        throw Exit{2, odc_last_error()};
    }
    std::vector<std::vector<size_t>> out(window.size());
    for (size_t i = 0; i < samples.size(); ++i) {
        out[static_cast<size_t>(minibatch_of[i])].push_back(samples[i]);
    }
    return out;
}

}  // namespace odc_tool

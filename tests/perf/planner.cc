// SPDX-License-Identifier: Apache-2.0
// odc_plan and odc_plan_window: the costs of a 7B model, 8 samples a rank.
#include <benchmark/benchmark.h>
#include <odc/odc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks.h"

namespace {

constexpr uint64_t kMaxTokens = 65536;
constexpr size_t kWindow = size_t{16} * 4096;  // samples

std::vector<uint64_t> lognormal(size_t count, double mean, double deviation) {
    std::mt19937_64 random(1);
    std::lognormal_distribution<double> tokens(mean, deviation);
    std::vector<uint64_t> lengths(count);
    for (uint64_t &length : lengths) {
        length = static_cast<uint64_t>(std::clamp(tokens(random), 1.0, double{kMaxTokens}));
    }
    return lengths;
}

std::vector<uint64_t> long_tailed(size_t count) { return lognormal(count, 8.5, 1.2); }

// No sample is long enough to bound a minibatch by itself, so every plan is searched to its end.
std::vector<uint64_t> even(size_t count) {
    std::mt19937_64 random(1);
    std::vector<uint64_t> lengths(count);
    for (uint64_t &length : lengths) {
        length = 1 + random() % kMaxTokens;
    }
    return lengths;
}

// One sample in 60 is cut at the budget, so that lookahead moves them.
std::vector<uint64_t> capped(size_t count) {
    std::mt19937_64 random(1);
    std::vector<uint64_t> lengths = lognormal(count, 8.0, 0.8);
    for (uint64_t &length : lengths) {
        length = random() % 60 == 0 ? kMaxTokens : length;
    }
    return lengths;
}

// One in 60 is long, no two alike.
std::vector<uint64_t> few_long(size_t count) {
    std::mt19937_64 random(1);
    std::vector<uint64_t> lengths = lognormal(count, 8.0, 0.8);
    for (uint64_t &length : lengths) {
        length = random() % 60 == 0 ? kMaxTokens / 2 + random() % (kMaxTokens / 2) : std::min(length, kMaxTokens / 4);
    }
    return lengths;
}

odc_plan_request request_of(const std::vector<uint64_t> &lengths, odc_policy policy, int32_t ranks) {
    odc_plan_request request = {};
    request.struct_size = sizeof(request);
    request.lengths = lengths.data();
    request.count = lengths.size();
    request.max_tokens = kMaxTokens;
    request.ranks = ranks;
    request.policy = policy;
    if (odc_plan_cost("7b", &request.a, &request.b) != ODC_OK) {
        std::abort();
    }
    return request;
}

void plan(benchmark::State &state, odc_policy policy, int32_t ranks) {
    const std::vector<uint64_t> lengths = long_tailed(8 * static_cast<size_t>(ranks));
    const odc_plan_request request = request_of(lengths, policy, ranks);
    std::vector<int32_t> rank_of(lengths.size());
    std::vector<int32_t> microbatch_of(lengths.size());
    for (auto _ : state) {
        if (odc_plan(&request, rank_of.data(), microbatch_of.data(), nullptr) != ODC_OK) {
            state.SkipWithError(odc_last_error());
            return;
        }
        benchmark::ClobberMemory();
    }
    state.SetItemsProcessed(static_cast<int64_t>(lengths.size()) * state.iterations());
}

// 16 minibatches of 4,096 samples on 512 ranks.
void plan_window(benchmark::State &state, odc_window_order order, const std::vector<uint64_t> &lengths) {
    odc_plan_request request = request_of(lengths, ODC_LB_MINI, 512);
    odc_window_request window = {};
    window.struct_size = sizeof(window);
    window.samples = &request;
    window.minibatches = 16;
    window.order = order;
    odc_window_summary summary = {};
    summary.struct_size = sizeof(summary);
    std::vector<int32_t> minibatch_of(lengths.size());
    std::vector<int32_t> rank_of(lengths.size());
    std::vector<int32_t> microbatch_of(lengths.size());
    for (auto _ : state) {
        if (odc_plan_window(&window, minibatch_of.data(), rank_of.data(), microbatch_of.data(), &summary) != ODC_OK) {
            state.SkipWithError(odc_last_error());
            return;
        }
        benchmark::ClobberMemory();
    }
    state.SetItemsProcessed(static_cast<int64_t>(lengths.size()) * state.iterations());
    state.counters["moved"] = summary.moved;
    state.counters["speedup"] = summary.makespan_before / summary.makespan;
}

}  // namespace

void register_planner() {
    for (const int32_t ranks : {8, 64, 512}) {
        std::string size = "/";
        size += std::to_string(ranks) + "_ranks";
        benchmark::RegisterBenchmark(("plan/local-sort" + size).c_str(), plan, ODC_LOCAL_SORT, ranks);
        benchmark::RegisterBenchmark(("plan/lb-micro" + size).c_str(), plan, ODC_LB_MICRO, ranks);
        benchmark::RegisterBenchmark(("plan/lb-mini" + size).c_str(), plan, ODC_LB_MINI, ranks);
        benchmark::RegisterBenchmark(("plan/sorted-rows" + size).c_str(), plan, ODC_SORTED_ROWS, ranks);
    }
    for (const auto &[name, lengths] :
         {std::pair("long_tailed", long_tailed(kWindow)), std::pair("broad", lognormal(kWindow, 9.5, 1.0)),
          std::pair("even", even(kWindow)), std::pair("capped", capped(kWindow)),
          std::pair("few_long", few_long(kWindow))}) {
        const std::string size = "/512_ranks/" + std::string(name);
        benchmark::RegisterBenchmark(("plan_window/exchanged" + size).c_str(), plan_window, ODC_WINDOW_EXCHANGED,
                                     lengths)
            ->Unit(benchmark::kMillisecond);
        benchmark::RegisterBenchmark(("plan_window/sorted" + size).c_str(), plan_window, ODC_WINDOW_SORTED, lengths)
            ->Unit(benchmark::kMillisecond);
    }
}

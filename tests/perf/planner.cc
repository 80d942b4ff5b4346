// SPDX-License-Identifier: Apache-2.0
// odc_plan: long-tailed lengths, the costs of a 7B model, 8 samples a rank.
#include <benchmark/benchmark.h>
#include <odc/odc.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "benchmarks.h"

namespace {

constexpr uint64_t kMaxTokens = 65536;

std::vector<uint64_t> long_tailed(size_t count) {
    std::mt19937_64 random(1);
    std::lognormal_distribution<double> tokens(8.5, 1.2);
    std::vector<uint64_t> lengths(count);
    for (uint64_t &length : lengths) {
        length = static_cast<uint64_t>(std::clamp(tokens(random), 1.0, double{kMaxTokens}));
    }
    return lengths;
}

void plan(benchmark::State &state, odc_policy policy, int32_t ranks) {
    const std::vector<uint64_t> lengths = long_tailed(8 * static_cast<size_t>(ranks));
    odc_plan_request request = {};
    request.struct_size = sizeof(request);
    request.lengths = lengths.data();
    request.count = lengths.size();
    request.max_tokens = kMaxTokens;
    request.ranks = ranks;
    request.policy = policy;
    if (odc_plan_cost("7b", &request.a, &request.b) != ODC_OK) {
        state.SkipWithError(odc_last_error());
        return;
    }
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

}  // namespace

void register_planner() {
    for (const int32_t ranks : {8, 64, 512}) {
        const std::string size = "/" + std::to_string(ranks) + "_ranks";
        benchmark::RegisterBenchmark(("plan/local-sort" + size).c_str(), plan, ODC_LOCAL_SORT, ranks);
        benchmark::RegisterBenchmark(("plan/lb-micro" + size).c_str(), plan, ODC_LB_MICRO, ranks);
        benchmark::RegisterBenchmark(("plan/lb-mini" + size).c_str(), plan, ODC_LB_MINI, ranks);
        benchmark::RegisterBenchmark(("plan/sorted-rows" + size).c_str(), plan, ODC_SORTED_ROWS, ranks);
    }
}

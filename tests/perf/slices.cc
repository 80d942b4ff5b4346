// SPDX-License-Identifier: Apache-2.0
// Finding the slices of a shard of 1024 ranks, the first step of a gather or scatter-add.
#include "memory/slice_layout.h"

#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "benchmarks.h"

namespace {

constexpr uint64_t kRanks = 1024;

std::vector<uint64_t> uneven_sizes() {
    std::vector<uint64_t> sizes(kRanks);
    for (uint64_t rank = 0; rank < kRanks; ++rank) {
        sizes[rank] = 1000 + rank % 7;
    }
    return sizes;
}

void look_up(benchmark::State &state, const odc::Slices &slices) {
    for (auto _ : state) {
        for (uint64_t rank = 0; rank < slices.count(); ++rank) {
            benchmark::DoNotOptimize(slices.begin(rank));
            benchmark::DoNotOptimize(slices.numel(rank));
        }
    }
    state.SetItemsProcessed(static_cast<int64_t>(slices.count()) * state.iterations());
}

void lay_out_uneven(benchmark::State &state) {
    const std::vector<uint64_t> sizes = uneven_sizes();
    for (auto _ : state) {
        odc::Slices slices(sizes);
        benchmark::DoNotOptimize(slices);
    }
}

}  // namespace

void register_slices() {
    benchmark::RegisterBenchmark("slices/look_up_equal", look_up, odc::Slices(1'000'003, kRanks));
    benchmark::RegisterBenchmark("slices/look_up_uneven", look_up, odc::Slices(uneven_sizes()));
    benchmark::RegisterBenchmark("slices/lay_out_uneven", lay_out_uneven);
}

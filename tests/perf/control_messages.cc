// SPDX-License-Identifier: Apache-2.0
// Encoding and decoding control messages: the most frequent one, the one that each chunk of an addition costs, and the longest,
// which registers a shard.
#include <benchmark/benchmark.h>
#include <odc/odc.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>

#include "benchmarks.h"
#include "transport/fabric/control_message.h"

namespace {

constexpr int kRanks = 1024;

odc::ControlMessage shard_of_all_ranks() {
    odc::RegisteredMessage registered = {};
    registered.numel = kRanks * uint64_t{1000};
    registered.slice_numel = 1000;
    registered.parameter_type = ODC_BF16;
    registered.gradient_type = ODC_BF16;
    registered.memory = ODC_HOST_MEMORY;
    registered.name = "model.layers.17.mlp.down_proj";
    registered.ranks.resize(kRanks);
    std::iota(registered.ranks.begin(), registered.ranks.end(), 0);
    registered.slices.assign(kRanks, 1000);
    return registered;
}

void encode(benchmark::State &state, const odc::ControlMessage &message) {
    size_t bytes = 0;
    for (auto _ : state) {
        const std::string encoded = odc::encode(message);
        bytes = encoded.size();
        benchmark::DoNotOptimize(encoded.data());
    }
    state.SetBytesProcessed(static_cast<int64_t>(bytes) * state.iterations());
}

void decode(benchmark::State &state, const odc::ControlMessage &message) {
    const std::string encoded = odc::encode(message);
    for (auto _ : state) {
        std::string_view stream = encoded;
        const auto decoded = odc::decode(&stream, kRanks);
        if (!decoded || !stream.empty()) {
            state.SkipWithError("the message was not decoded as a whole");
            return;
        }
    }
    state.SetBytesProcessed(static_cast<int64_t>(encoded.size()) * state.iterations());
}

}  // namespace

void register_control_messages() {
    const struct {
        const char *name;
        odc::ControlMessage message;
    } messages[] = {{"published", odc::PublishedMessage{4096, 7, 0, 0, 0}},
                    {"add", odc::AddMessage{1, 4096, 8, 0, 131072, 0x7f0000000000, 42, 0, 0, 0}},
                    {"shard_of_1024_ranks", shard_of_all_ranks()}};
    for (const auto &[name, message] : messages) {
        benchmark::RegisterBenchmark((std::string("encode/") + name).c_str(), encode, message);
        benchmark::RegisterBenchmark((std::string("decode/") + name).c_str(), decode, message);
    }
}

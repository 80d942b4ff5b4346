// SPDX-License-Identifier: Apache-2.0
// A line of the log that is off, as each call of a job has one, beside an empty loop; and one that is made.
#include "base/log.h"

#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>

#include "benchmarks.h"

namespace {

void drop(void *, int32_t, const char *line) { benchmark::DoNotOptimize(line); }

void nothing(benchmark::State &state) {
    odc::Log made(ODC_LOG_WARN);
    odc::Log *log = &made;
    for (auto _ : state) {
        benchmark::DoNotOptimize(log);
    }
}

void line(benchmark::State &state, odc_log_level level) {
    odc::Log made(level, drop, nullptr);
    made.set_process("host", "");
    made.set_rank(3, 8);
    odc::Log *log = &made;
    const std::string shard = "layer.0";
    for (auto _ : state) {
        benchmark::DoNotOptimize(log);  // which the compiler knows nothing of
        log->debug("registers shard \"{}\", here {} bytes", shard, 4096);
        log->deliver();
    }
}

}  // namespace

void register_log() {
    benchmark::RegisterBenchmark("log/empty_loop", nothing);
    benchmark::RegisterBenchmark("log/line_off", line, ODC_LOG_WARN);
    benchmark::RegisterBenchmark("log/line_on", line, ODC_LOG_DEBUG);
}

// SPDX-License-Identifier: Apache-2.0
// The stopwatch of ranks that share no memory.
#include "bench/network.h"

#include "cli/progress.h"
#include "rank/clock.h"
#include "rank/context.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace odc_tool {

namespace {

constexpr int kTries = 3;  // to find the number of repeats

// Calls `work` on all ranks together; returns the slowest rank's seconds, the same on all ranks.
double time_together(odc_context *barrier, const std::function<void()> &work) {
    check(odc_minibatch_sync(barrier));
    const int64_t begin_ns = now_ns();
    work();
    double seconds = static_cast<double>(now_ns() - begin_ns) * 1e-9;
    check(odc_minibatch_sync_reduce(barrier, &seconds, 1, ODC_MAX));
    return seconds;
}

MedianInterval repeat(odc_context *barrier, int timings, const std::function<double()> &time) {
    std::optional<Progress> progress;
    if (odc_rank(barrier) == 0) {
        progress.emplace(timings);
    }
    std::vector<double> times;
    for (int i = 0; i < timings; ++i) {
        if (progress) {
            progress->show(i, fmt::format("timing {} of {}", i + 1, timings));
        }
        times.push_back(time());
    }
    return median_interval(std::move(times));
}

double time_operations(odc_context *barrier, const Contestant &contestant, uint64_t repeats) {
    contestant.prepare();
    check(odc_minibatch_sync(barrier));
    contestant.operate();  // connects, and allocates pages and shards
    const double seconds = time_together(barrier, [&] {
        for (uint64_t i = 0; i < repeats; ++i) {
            contestant.operate();
        }
    });
    contestant.finish();
    return seconds / static_cast<double>(repeats);
}

}  // namespace

MedianInterval time_network_sync(odc_context *barrier, const Contestant &sync, int timings) {
    return repeat(barrier, timings, [&] {
        sync.prepare();
        const double seconds = time_together(barrier, sync.operate);
        sync.finish();
        return 1e6 * seconds;
    });
}

NetworkResult time_network(odc_context *barrier, const Contestant &contestant, int timings, double timing_seconds,
                           uint64_t most) {
    uint64_t repeats = 1;
    const auto time = [&] { return time_operations(barrier, contestant, repeats); };
    const double wanted = std::ceil(timing_seconds / repeat(barrier, kTries, time).median);
    repeats = std::clamp<uint64_t>(static_cast<uint64_t>(std::min(wanted, 1e9)), 1, most);
    return {repeats, repeat(barrier, timings, time)};
}

}  // namespace odc_tool

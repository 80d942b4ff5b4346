// SPDX-License-Identifier: Apache-2.0
// The stopwatch of ranks that share no memory.
#include "bench/network.h"

#include "rank/clock.h"
#include "rank/context.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace odc_tool {

namespace {

constexpr int kTries = 3;  // to find the number of repeats

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

MedianInterval median_time(odc_context *barrier, const Contestant &contestant, int timings, uint64_t repeats) {
    std::vector<double> seconds;
    for (int i = 0; i < timings; ++i) {
        seconds.push_back(time_operations(barrier, contestant, repeats));
    }
    return median_interval(std::move(seconds));
}

}  // namespace

double time_together(odc_context *barrier, const std::function<void()> &work) {
    check(odc_minibatch_sync(barrier));
    const int64_t begin_ns = now_ns();
    work();
    double seconds = static_cast<double>(now_ns() - begin_ns) * 1e-9;
    check(odc_minibatch_sync_reduce(barrier, &seconds, 1, ODC_MAX));
    return seconds;
}

NetworkResult time_network(odc_context *barrier, const Contestant &contestant, int timings, double timing_seconds,
                           uint64_t most) {
    const double wanted = std::ceil(timing_seconds / median_time(barrier, contestant, kTries, 1).median);
    const uint64_t repeats = std::clamp<uint64_t>(static_cast<uint64_t>(std::min(wanted, 1e9)), 1, most);
    return {repeats, median_time(barrier, contestant, timings, repeats)};
}

}  // namespace odc_tool

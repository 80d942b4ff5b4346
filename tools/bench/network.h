// SPDX-License-Identifier: Apache-2.0
// What `odc bench` measures between hosts. Ranks start together at the sync of a context of its own, each by its own
// clock, and the slowest counts. There is no bare loop: a copy is no limit for a network.
#pragma once

#include "bench/operation.h"
#include "rank/statistics.h"

#include <odc/odc.h>

#include <cstdint>
#include <functional>

namespace odc_tool {

struct NetworkResult {
    uint64_t repeats;        // in one timing
    MedianInterval seconds;  // of one operation
};

// Both are collective. `meeting` has no shards and is between sync and publish, as after odc_init.
// `timings` timings that take `timing_seconds` each, but have `most` operations at most.
NetworkResult time_network(odc_context *meeting, const Contestant &contestant, int timings, double timing_seconds,
                           uint64_t most);
// Runs `work` on all ranks together; returns the slowest rank's seconds, the same on all ranks.
double time_together(odc_context *meeting, const std::function<void()> &work);

}  // namespace odc_tool

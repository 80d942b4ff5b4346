// SPDX-License-Identifier: Apache-2.0
// `odc bench` between hosts. Ranks start together at the sync of a separate context, each by its own clock, and the slowest
// counts. There is no bare loop: a memory copy is not a network's limit.
#pragma once

#include "bench/operation.h"
#include "rank/statistics.h"

#include <odc/odc.h>

#include <cstdint>

namespace odc_tool {

struct NetworkResult {
    uint64_t repeats;        // in one timing
    MedianInterval seconds;  // of one operation
};

// Both are collective, and show their progress on a terminal. `barrier` has no shards and is between sync and publish, as after odc_init.
// Makes `timings` timings of `timing_seconds` each, but of `most` operations at most.
NetworkResult time_network(odc_context *barrier, const Contestant &contestant, int timings, double timing_seconds,
                           uint64_t most);
// A synchronization's microseconds; the difference of the ranks' starts is included.
MedianInterval time_network_sync(odc_context *barrier, const Contestant &sync, int timings);

}  // namespace odc_tool

// SPDX-License-Identifier: Apache-2.0
// How much memory each rank of this host gives to its node cache and partial sums (core/foreign_slices.h). All ranks of a host
// come to the same answer, from what each says in its control block.
#pragma once

#include "memory/control_block.h"

#include <cstdint>
#include <string>
#include <vector>

namespace odc {

class Allgather;

struct NodeCacheShare {
    uint64_t bytes = 0;  // of each rank; 0: there is no cache
    // A registration takes at most 1/part_of_free of the memory that is free then; 0: no limit.
    uint64_t part_of_free = 0;
    std::string why;  // the end of a route's explanation, for routes to other hosts
};

// This rank's, by ODC_NODE_CACHE. Throws ODC_ERROR_ARGUMENT. `allgather`: NULL where all ranks are on this host, where looking at
// its memory would take time for nothing.
NodeCacheLimit node_cache_limit(const Allgather *allgather);
// The least share of a host's ranks, by their control blocks; none where a host has one rank.
NodeCacheShare node_cache_share(const std::vector<const ControlBlock *> &local_peers);

}  // namespace odc

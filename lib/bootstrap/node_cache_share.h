// SPDX-License-Identifier: Apache-2.0
// How much memory each rank of this host gives to its node cache (core/node_cache.h). All ranks of a host come to the same answer,
// from what each says in its control block.
#pragma once

#include "memory/control_block.h"

#include <cstdint>
#include <string>

namespace odc {

class Allgather;
struct Membership;

struct NodeCacheShare {
    uint64_t bytes = 0;  // of each rank; 0: there is no cache
    std::string why;     // as a route's explanation ends; "" where there is nothing to cache
};

// This rank's, by ODC_NODE_CACHE. Throws ODC_ERROR_ARGUMENT. `exchange`: NULL where all ranks are on this host, where looking at
// its memory would take time for nothing.
NodeCacheOffer node_cache_offer(const Allgather *exchange);
// The least that any rank of this host offers. Their control blocks are mapped.
NodeCacheShare node_cache_share(const Membership &membership);

}  // namespace odc

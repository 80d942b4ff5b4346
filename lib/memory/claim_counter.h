// SPDX-License-Identifier: Apache-2.0
// The items of a minibatch that ranks claim: two words in rank 0's control block, which the ranks of its host and its own
// progress thread, for ranks of other hosts, change by compare-and-swap. The first claim of a minibatch begins it anew: by
// then every rank has come through the sync before, so none claims from an earlier one.
#pragma once

#include "memory/control_block.h"

#include <atomic>
#include <cstdint>

namespace odc {

constexpr uint64_t kMostItems = 0xffffffff;

struct ClaimedItem {
    uint64_t index;  // `count`: all are taken
    uint64_t count;  // if it is not the count that was asked for, nothing was taken
};

inline ClaimedItem claim_item(ClaimCounter &counter, uint64_t minibatch, uint64_t count) {
    const uint64_t tag = (minibatch + 1) << 32;
    uint64_t agreed = counter.count.load(std::memory_order_relaxed);
    if ((agreed & ~kMostItems) != tag &&
        counter.count.compare_exchange_strong(agreed, tag | count, std::memory_order_relaxed)) {
        agreed = tag | count;
    }
    if (agreed != (tag | count)) {
        return {0, agreed & kMostItems};
    }
    uint64_t before = counter.taken.load(std::memory_order_relaxed);
    for (;;) {
        const uint64_t index = (before & ~kMostItems) == tag ? before & kMostItems : 0;
        if (index == count ||
            counter.taken.compare_exchange_weak(before, tag | (index + 1), std::memory_order_relaxed)) {
            return {index, count};
        }
    }
}

}  // namespace odc

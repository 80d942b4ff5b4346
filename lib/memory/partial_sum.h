// SPDX-License-Identifier: Apache-2.0
// A partial sum: a line with the words below and, behind it, stripes and sums for one slice of another host, in the shared memory
// of the rank of this host that holds it (core/node_sums.h). Ranks of the host add to it as to a slice of their own host, under the
// stripes' locks; the first addition of a minibatch to a stripe stores. A stripe's generation: the minibatch of its sums plus one.
//
// 1. Each rank that may add counts itself in once a minibatch, after its last addition (acquire and release, so that the last rank
//    sees what all have added). The last rank sends the sums to the owner; before it, nobody reads them.
// 2. It sends nothing if nobody has added: then the stripes are of an older generation. An addition covers the whole slice, so all
//    stripes are of the same generation, and of equally many addends.
// 3. It arrives in the sync only when the owner has applied all that it sent. So a stripe is added to in the next minibatch, after
//    that sync, only when nobody reads the sums of this one any more.
// 4. Ranks touch a partial sum in a minibatch only after its holder has published the shard in it, and before they arrive: then the
//    holder has not released the shard, and cannot.
// 5. Zeroed memory is of an older generation: generations begin at 1.
#pragma once

#include "memory/shard_record.h"

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace odc {

struct alignas(64) PartialSum {
    static constexpr int kCountBits = 20;  // a host has at most 2^16 ranks (kTreeLevels)

    std::atomic<uint64_t> finished;  // generation << kCountBits | how many ranks have counted themselves in
    std::atomic<uint64_t> clamped;   // addends of exact sums that were clamped in this minibatch

    Stripe *stripes() { return reinterpret_cast<Stripe *>(this + 1); }
    // Returns how many have counted themselves in for `generation` now.
    uint64_t count_in(uint64_t generation) {
        uint64_t seen = finished.load(std::memory_order_relaxed);
        uint64_t count = 0;
        do {
            count = seen >> kCountBits == generation ? (seen & kCount) + 1 : 1;
        } while (!finished.compare_exchange_weak(seen, generation << kCountBits | count, std::memory_order_acq_rel,
                                                 std::memory_order_relaxed));
        return count;
    }

private:
    static constexpr uint64_t kCount = (uint64_t{1} << kCountBits) - 1;
};

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// A shard as its owner announces it: a record in the owner's arena, in a list that begins in its RankBlock. Fixed once
// linked, but for the two words that the contract lives on.
#pragma once

#include "arena.h"

#include <atomic>
#include <cstdint>
#include <string_view>

namespace odc {

// The lock of one stretch of an accumulator, and the minibatch (plus one) whose sums it holds: the first addition of a
// minibatch stores instead of adding, so nobody has to zero anything.
struct Stripe {
    std::atomic<uint32_t> lock;
    uint32_t unused;
    uint64_t filled;  // under the lock
};
constexpr uint64_t kStripeBytes = uint64_t{64} << 10;

struct Post {
    Link next;
    uint64_t offset;     // of this record in the file; everything of this shard lies in the same segment
    uint64_t minibatch;  // in which it was registered
    uint64_t numel;
    int32_t parameter_type;
    int32_t gradient_type;
    uint64_t slice_numel;  // of this owner
    uint64_t parameters;   // offsets in the file; 0: none
    uint64_t accumulator;
    uint64_t stripes;
    uint32_t name_bytes;
    uint32_t rank_count;   // 0: all ranks, none listed below
    uint32_t slice_count;  // 0: equal slices, none listed below
    std::atomic<uint32_t> released;
    std::atomic<uint64_t> published;  // this slice holds the parameters of minibatch published - 1
    // Then, without gaps: uint64_t slices[slice_count], int32_t ranks[rank_count], char name[name_bytes].

    const uint64_t *slices() const { return reinterpret_cast<const uint64_t *>(this + 1); }
    const int32_t *ranks() const { return reinterpret_cast<const int32_t *>(slices() + slice_count); }
    std::string_view name() const { return {reinterpret_cast<const char *>(ranks() + rank_count), name_bytes}; }
    // The address of another place of the same segment.
    std::byte *at(uint64_t place) const {
        return reinterpret_cast<std::byte *>(const_cast<Post *>(this)) + (place - offset);
    }
};

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// A shard as its owner announces it: a record in the owner's arena, in a list that begins in its ControlBlock. Once it is
// in the list, only its atomic words change, until its shard is released and nobody can be about to read it.
#pragma once

#include "memory/free_ranges.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string_view>

namespace odc {

// The lock of one stretch of an accumulator, and the minibatch (plus one) whose sums it holds: the first addition of a
// minibatch stores instead of adding, so nobody has to zero anything.
struct Stripe {
    std::atomic<uint32_t> lock;
    uint32_t unused;
    uint64_t epoch;  // under the lock
};
constexpr uint64_t kStripeBytes = uint64_t{64} << 10;

struct ShardRecord {
    std::atomic<uint64_t> next;       // offset of the next post's record; 0: none yet
    std::atomic<uint64_t> minibatch;  // in which it was registered; grows when the record is used for another shard
    uint64_t numel;
    int32_t parameter_type;
    int32_t gradient_type;
    int32_t memory;  // odc_memory
    uint32_t unused;
    uint64_t slice_numel;  // of this owner; 0: none of the following
    // In host memory the slice; of one in GPU memory its mirror, if a rank needs that.
    Segment segment;      // where all of it lies; of no bytes if there is none, and on another host
    uint64_t parameters;  // from the segment's beginning, if there is a parameter_type
    uint64_t stripes;     // and these if there is a gradient_type
    uint64_t accumulator;
    // In GPU memory.
    uint64_t region;          // the owner's number of it; 0: host memory
    uint64_t gpu_parameters;  // from the region's beginning
    uint64_t gpu_accumulator;
    uint64_t record;   // offset of this record in the owner's arena
    uint64_t address;  // of the parameters, for reads from other hosts with `key`
    uint64_t key;
    uint32_t name_bytes;
    uint32_t rank_count;   // 0: all ranks, none listed below
    uint32_t slice_count;  // 0: equal slices, none listed below
    std::atomic<uint32_t> released;
    std::atomic<uint64_t> published;  // this slice holds the parameters of minibatch published - 1
    // Then, without gaps: uint64_t slices[slice_count], int32_t ranks[rank_count], char name[name_bytes].

    const uint64_t *slices() const { return reinterpret_cast<const uint64_t *>(this + 1); }
    const int32_t *ranks() const { return reinterpret_cast<const int32_t *>(slices() + slice_count); }
    std::string_view name() const { return {reinterpret_cast<const char *>(ranks() + rank_count), name_bytes}; }
};

// Bytes of the record of a shard that is described by `what`: a Description, or a PostNotice of one.
template <class What>
uint64_t post_bytes(const What &what) {
    return sizeof(ShardRecord) + what.slices.size() * sizeof(uint64_t) + what.ranks.size() * sizeof(int32_t) +
           what.name.size();
}

// Writes what the owner and its images in other processes say alike; where the slice lies is the caller's to add. The
// record may have been another shard's, which a peer's odc_gather still looks at: it must not see that one unreleased, or
// published, without seeing that it is that one no more.
template <class What>
void write_post(ShardRecord &post, const What &what, uint64_t record, uint64_t minibatch, uint64_t slice_numel) {
    post.minibatch.store(minibatch, std::memory_order_relaxed);
    post.released.store(0, std::memory_order_release);
    post.published.store(0, std::memory_order_release);
    post.next.store(0, std::memory_order_relaxed);
    post.numel = what.numel;
    post.parameter_type = what.parameter_type;
    post.gradient_type = what.gradient_type;
    post.memory = what.memory;
    post.slice_numel = slice_numel;
    post.record = record;
    post.name_bytes = static_cast<uint32_t>(what.name.size());
    post.rank_count = static_cast<uint32_t>(what.ranks.size());
    post.slice_count = static_cast<uint32_t>(what.slices.size());
    std::copy(what.slices.begin(), what.slices.end(), const_cast<uint64_t *>(post.slices()));
    std::copy(what.ranks.begin(), what.ranks.end(), const_cast<int32_t *>(post.ranks()));
    std::copy(what.name.begin(), what.name.end(), const_cast<char *>(post.name().data()));
}

}  // namespace odc

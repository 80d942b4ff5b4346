// SPDX-License-Identifier: Apache-2.0
// A shard as one rank knows it: its description, its own slice, and the posts of the other owners.
#pragma once

#include "arena.h"
#include "cuda_driver.h"
#include "post.h"
#include "slices.h"
#include "transport/transport.h"

#include <odc/odc.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace odc {

// A description, copied and checked: safe to keep and to compare.
struct Description {
    std::string name;
    uint64_t numel;
    int32_t parameter_type;
    int32_t gradient_type;
    int32_t memory;                // odc_memory
    std::vector<int32_t> ranks;    // empty: all
    std::vector<uint64_t> slices;  // empty: equal

    // Throws ODC_ERROR_ARGUMENT. `desc` is complete (copied to today's size).
    Description(const odc_shard_desc &desc, int rank, int size);
};

// A part of a region of GPU memory.
struct GpuAllocation {
    uint64_t region;   // its number
    std::byte *start;  // of the region; NULL: an empty part
    uint64_t offset;
};

class Shard {
public:
    Shard(Description description, int rank, int size);

    const std::string &name() const { return description_.name; }
    const Description &description() const { return description_; }
    uint64_t owners() const { return slices_.count(); }
    int owner(uint64_t index) const {
        return description_.ranks.empty() ? static_cast<int>(index) : description_.ranks[index];
    }
    uint64_t own_index() const { return own_index_; }
    const Slices &slices() const { return slices_; }
    uint64_t own_numel() const { return slices_.numel(own_index_); }

    bool on_gpu() const { return description_.memory == ODC_GPU_MEMORY; }

    // Memory that this rank's part takes: the post's record, and the slice (both halves, and in host memory stripes).
    uint64_t record_bytes() const;
    uint64_t region_bytes() const;
    uint64_t slice_bytes() const;
    // Both write the post into the record at `offset`; peers see it once it is announced.
    void settle(Post &record, uint64_t offset, const Allocation &slice, uint64_t minibatch);
    // In GPU memory: from `begin` on in the region `number`, which begins at `start` here.
    void settle(Post &record, uint64_t offset, const GpuAllocation &slice, uint64_t minibatch);
    uint64_t record() const { return record_; }
    const Allocation &region() const { return region_; }
    Post &post() const { return *links_[own_index_].post.load(std::memory_order_relaxed); }

    // The post of an owner, once found (see Posts), and its slice, whose segment or region begins at `base` here (NULL:
    // nowhere).
    Post *linked(uint64_t index) const { return links_[index].post.load(std::memory_order_acquire); }
    std::byte *base(uint64_t index) const { return links_[index].base; }
    uint64_t region_of(uint64_t index) const { return links_[index].region; }
    void link(uint64_t index, Post &post, std::byte *base);
    RemoteSlice slice(uint64_t index) const;
    // False once the owner has released it and used its record again.
    bool stands(const Post &post) const { return post.minibatch.load(std::memory_order_relaxed) == registered; }
    // Empty if the other rank means the same; else what differs, in words.
    std::string difference(const Post &other, int other_rank, int rank) const;

    uint64_t registered = 0;  // minibatch
    uint64_t published = 0;   // minibatch + 1
    uint64_t number = 0;      // in the order of announcement
    // In GPU memory: set where the own slice was opened, and the address for streams of the post's word. NULL for an
    // empty slice.
    cuda::Event mark = nullptr;
    cuda::Address word = 0;

private:
    uint64_t stripes_bytes() const;
    void write(Post &post, uint64_t offset, uint64_t minibatch);
    void place(Post &post, uint64_t begin, std::byte *base);

    Description description_;
    Slices slices_;
    uint64_t own_index_ = 0;
    uint64_t record_ = 0;
    Allocation region_{};
    struct Link {
        std::atomic<Post *> post;
        std::byte *base;
        uint64_t region;  // of GPU memory
    };
    std::unique_ptr<Link[]> links_;
};

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// A shard as one rank knows it: its description, its own slice, and the posts of the other owners.
#pragma once

#include "core/slice_layout.h"
#include "memory/shard_record.h"
#include "memory/shared_arena.h"
#include "transport/cuda/driver.h"
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
    uint64_t region;   // its number; 0: no part
    std::byte *start;  // of the region
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
    // In GPU memory, and some of its ranks reach it through host memory only.
    bool is_mirrored() const { return mirrored_; }
    void mirror() { mirrored_ = true; }

    // Memory that this rank's part takes: the post's record; in host memory stripes and both halves, or their mirror on
    // whole pages; in GPU memory both halves.
    uint64_t record_bytes() const;
    uint64_t host_bytes() const;
    uint64_t gpu_bytes() const;
    uint64_t slice_bytes() const;  // both halves
    // Writes the post into the record at `offset`; peers see it once it is announced.
    void settle(ShardRecord &record, uint64_t offset, const Allocation &host, const GpuAllocation &gpu,
                uint64_t minibatch);
    uint64_t record() const { return record_; }
    const Allocation &host_region() const { return host_region_; }
    ShardRecord &post() const { return *links_[own_index_].post.load(std::memory_order_relaxed); }

    // The post of an owner, once found (see Posts).
    ShardRecord *linked(uint64_t index) const { return links_[index].post.load(std::memory_order_acquire); }
    // Where its segment and its region begin here (NULL: nowhere), the region's number, and the pages of its mirror.
    struct Bases {
        std::byte *host;
        std::byte *gpu;
        uint64_t region;
        std::byte *mirror;
        uint64_t mirror_bytes;
    };
    const Bases &bases(uint64_t index) const { return links_[index].bases; }
    void link(uint64_t index, ShardRecord &post, const Bases &bases);
    // As this rank reaches it: in GPU memory if that can be.
    RemoteSlice slice(uint64_t index) const;
    // In host memory, of this rank's or of an owner whose GPU cannot be reached.
    RemoteSlice host_slice(uint64_t index) const;
    bool is_staged(uint64_t index) const { return on_gpu() && links_[index].bases.gpu == nullptr; }
    // Where `post`, an owner's of this shard, begins here, if its segment does at `host`, its region at `gpu`.
    Bases bases_of(const ShardRecord &post, std::byte *host, std::byte *gpu) const;
    // False once the owner has released it and used its record again.
    bool stands(const ShardRecord &post) const { return post.minibatch.load(std::memory_order_relaxed) == registered; }
    // Empty if the other rank means the same; else what differs, in words.
    std::string difference(const ShardRecord &other, int other_rank, int rank) const;

    uint64_t registered = 0;  // minibatch
    uint64_t published = 0;   // minibatch + 1
    uint64_t number = 0;      // in the order of announcement
    // In GPU memory: set where the own slice was opened, and the address for streams of the post's word. NULL for an
    // empty slice.
    cuda::Event mark = nullptr;
    cuda::Address word = 0;
    uint64_t folded = 0;  // minibatch + 1: the mirror's sums are on their way to the GPU's

private:
    Description description_;
    Slices slices_;
    bool mirrored_ = false;
    uint64_t own_index_ = 0;
    uint64_t record_ = 0;
    Allocation host_region_{};
    struct Link {
        std::atomic<ShardRecord *> post;
        Bases bases;
    };
    std::unique_ptr<Link[]> links_;
};

}  // namespace odc

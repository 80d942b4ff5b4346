// SPDX-License-Identifier: Apache-2.0
// A shard as one rank knows it: its description, its own slice, and the records of the other owners.
#pragma once

#include "memory/exact_sum.h"
#include "memory/shard_record.h"
#include "memory/shared_arena.h"
#include "memory/slice_layout.h"
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
    int32_t summation;             // ODC_SUM_EXACT or 0
    int32_t first_exponent;        // of exact sums; 0 without them
    std::vector<int32_t> ranks;    // empty: all
    std::vector<uint64_t> slices;  // empty: equal

    // Throws ODC_ERROR_ARGUMENT. `desc` is complete (copied to today's size).
    Description(const odc_shard_desc &desc, int rank, int size);
};

class Engine;

// What an engine keeps with a shard or an operation.
struct EngineState {
    virtual ~EngineState() = default;
};

// A part of a region of device memory.
struct DeviceAllocation {
    uint64_t region;   // its number; 0: no part
    std::byte *start;  // of the region
    uint64_t offset;
};

// What this rank keeps of its exact sums (exact_sums.h).
struct ExactState {
    ExponentVote vote;       // of the next publish
    uint64_t converted = 0;  // the last generation whose sums are f32 now
    uint64_t clamped = 0;    // addends that the record counts, up to that generation
};

class Shard {
public:
    // `engine`: for its kind of memory; it outlives this.
    Shard(Description description, Engine &engine, int rank, int size);

    const std::string &name() const { return description_.name; }
    const Description &description() const { return description_; }
    Engine &engine() const { return engine_; }
    uint64_t owners() const { return slices_.count(); }
    int owner(uint64_t index) const {
        return description_.ranks.empty() ? static_cast<int>(index) : description_.ranks[index];
    }
    uint64_t own_index() const { return own_index_; }
    const Slices &slices() const { return slices_; }
    uint64_t own_numel() const { return slices_.numel(own_index_); }

    // In device memory: a stream writes its `published` word, which rings no doorbell.
    bool on_device() const { return description_.memory != ODC_HOST_MEMORY; }
    bool is_exact() const { return description_.summation == ODC_SUM_EXACT; }
    // In device memory, and some of its ranks reach it through host memory only.
    bool is_shadowed() const { return shadowed_; }
    void set_shadowed() { shadowed_ = true; }

    // What this rank holds for its host beside its slice, in host memory: entries of the node cache and partial sums. Before
    // set_memory.
    struct Held {
        uint64_t count = 0;
        uint64_t bytes = 0;
        void add(const Held &more) {
            count += more.count;
            bytes += more.bytes;
        }
    };
    void hold(const Held &entries, const Held &sums) {
        entries_ = entries;
        partial_sums_ = sums;
    }
    const Held &entries() const { return entries_; }
    uint64_t held_bytes() const { return entries_.bytes + partial_sums_.bytes; }

    // Memory that this rank's part takes: the record; in host memory stripes, both halves and what it holds for its host, or their
    // shadow on whole pages; in device memory both halves.
    uint64_t record_bytes() const;
    uint64_t host_bytes() const;
    uint64_t device_bytes() const;
    uint64_t device_sum_bytes() const;  // exact sums with their totals
    uint64_t slice_bytes() const;       // both halves
    // Writes the record at `offset`, and then where the slice lies; peers see it once the shard is in the directory.
    void set_record(ShardRecord &record, uint64_t offset, uint64_t minibatch);
    void set_memory(const Allocation &host, const DeviceAllocation &device);
    uint64_t record_offset() const { return record_offset_; }
    const Allocation &host_region() const { return host_region_; }
    ShardRecord &record() const { return *links_[own_index_].record.load(std::memory_order_relaxed); }

    // The record of an owner, once found (see ShardDirectory).
    ShardRecord *linked(uint64_t index) const { return links_[index].record.load(std::memory_order_acquire); }
    // Where the owner's segment and region begin here (NULL: nowhere), the region's number, and the pages of its shadow.
    struct Bases {
        std::byte *host;
        std::byte *device;
        uint64_t region;
        std::byte *shadow;
        uint64_t shadow_bytes;
    };
    const Bases &bases(uint64_t index) const { return links_[index].bases; }
    void link(uint64_t index, ShardRecord &record, const Bases &bases);
    // The slice as this rank reaches it: in device memory if that is possible.
    RemoteSlice slice(uint64_t index) const;
    // The slice in host memory, of this rank or of an owner whose device cannot be reached.
    RemoteSlice host_slice(uint64_t index) const;
    bool is_staged(uint64_t index) const { return on_device() && links_[index].bases.device == nullptr; }
    // Where an owner's record of this shard says that things are, if its segment begins here at `host`, its region at `device`.
    Bases bases_of(const ShardRecord &record, std::byte *host, std::byte *device) const;
    // False once the owner has released it and used its record again.
    bool stands(const ShardRecord &record) const {
        return record.minibatch.load(std::memory_order_relaxed) == registered;
    }
    // Empty if the other rank means the same; else says what differs.
    std::string difference(const ShardRecord &other, int other_rank, int rank) const;

    uint64_t registered = 0;  // minibatch
    uint64_t published = 0;   // the last generation
    uint64_t finished = 0;    // likewise: this rank adds nothing more in this minibatch
    uint64_t number = 0;      // in the order of this rank's directory
    ExactState exact;
    std::unique_ptr<EngineState> engine_state;

private:
    Description description_;
    Engine &engine_;
    Slices slices_;
    bool shadowed_ = false;
    uint64_t own_index_ = 0;
    uint64_t record_offset_ = 0;
    Held entries_;
    Held partial_sums_;
    Allocation host_region_{};
    struct Link {
        std::atomic<ShardRecord *> record;
        Bases bases;
    };
    std::unique_ptr<Link[]> links_;
};

}  // namespace odc

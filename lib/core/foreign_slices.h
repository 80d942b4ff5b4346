// SPDX-License-Identifier: Apache-2.0
// Foreign slices, those of owners on other hosts: which owner of this host holds what belongs to each, its entry of the node cache and
// its partial sum. The **holder** follows from the shard's description, and its shard record says whether it has memory for them, so
// all ranks of the host agree.
#pragma once

#include "core/shard.h"

#include <cstdint>
#include <span>
#include <vector>

namespace odc {

class Job;

struct ForeignSlice {
    static constexpr uint64_t kNone = ~uint64_t{0};
    struct Part {
        uint64_t begin = 0;  // from where the holder's parts of this kind begin
        uint64_t bytes = 0;
        uint64_t end() const { return begin + bytes; }
    };
    uint64_t holder = kNone;  // its index among the shard's owners
    uint64_t number = 0;      // among the holder's foreign slices of this shard
    Part entry;
    Part sum;
    bool has_sum = true;      // until an arrival finds that the holder has none for it, or has released the shard
    uint64_t counted_in = 0;  // the last generation for which this rank counted itself in (memory/partial_sum.h)
};

struct ForeignSlices final : EngineState {
    std::vector<ForeignSlice> of;  // by owner
    std::vector<uint64_t> held;    // by this rank: their owners
    uint64_t holders = 0;
};

// Finds the holders of a new shard's foreign slices, if at least two ranks of the shard are here.
void find_holders(const Job &job, Shard &shard);
// NULL: nobody holds anything for the slice of this owner.
ForeignSlice *foreign_slice(const Shard &shard, uint64_t index);
uint64_t holder_count(const Shard &shard);
// The owners of the foreign slices that this rank holds.
std::span<const uint64_t> held_slices(const Shard &shard);

// Where the sums of a partial sum begin, behind its line and its stripes, and how long it is.
struct PartialSumLayout {
    PartialSumLayout(const Shard &shard, uint64_t index);
    uint64_t sums;
    uint64_t bytes;
};

// Returns the first parts of a shard that this rank holds: as many as fit in `left` bytes.
Shard::Held fit(const Shard &shard, ForeignSlice::Part ForeignSlice::*part, uint64_t left);

}  // namespace odc

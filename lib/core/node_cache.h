// SPDX-License-Identifier: Apache-2.0
// The node cache: a slice of another host is read once a minibatch into an entry in this host's shared memory, from where all ranks
// of the host gather it. memory/cache_entry.h says which states an entry goes through, and why nobody reads a wrong one.
//
// foreign_slices.h says which rank holds an entry. When the holder publishes a shard it begins to read the slices that the host wanted
// in the minibatch before: those that a rank waits for first, then from each owner in the order in which they were wanted then. Any
// other slice is read by the rank that wants it first. A rank reads by its own NIC and progress thread, so that no rank waits for a call
// of another. A gather waits for the publish of the holder, which is an owner, anyway.
#pragma once

#include "bootstrap/node_cache_share.h"
#include "core/job.h"
#include "core/shard.h"
#include "memory/cache_entry.h"
#include "transport/transport.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace odc {

struct Counters;
class ShardDirectory;

class NodeCache {
public:
    NodeCache(Job &job, ShardDirectory &directory, Counters &counters, const NodeCacheShare &share);

    // ---- Shards ----
    bool is_on() const { return share_.bytes > 0; }
    // Its size was given in bytes by every rank of the host.
    bool has_given_size() const { return is_on() && share_.part_of_free == 0; }
    // Where it is on: bytes for what this rank is to hold of new shards, partial sums included.
    uint64_t room() const;
    // This rank's entries of a new shard: as many as fit in `left` bytes. What does not fit is read directly, by every rank.
    Shard::Held plan(const Shard &shard, uint64_t left) const;
    // The shard has got the memory for what this rank holds.
    void took(const Shard &shard) { used_ += shard.held_bytes(); }
    // The shard gives that memory back; cancels this rank's reads of the shard.
    void forget(const Shard &shard);

    // ---- Gathers ----
    // Whether the slice of the owner `index` may have an entry, and the index of the owner that holds it then.
    bool caches(const Shard &shard, uint64_t index) const;
    uint64_t holder(const Shard &shard, uint64_t index) const;
    // The following need the holder to have published the shard in this minibatch.
    bool has_entry(const Shard &shard, uint64_t index) const;
    // Begins to read the slice into its entry, unless that has begun; somebody waits for it now. The owner has registered the shard.
    void want(Shard &shard, uint64_t index);
    // Copies the slice if it is in its entry, without waiting or after a wait; false: it is not. After a wait it does not come there
    // any more and is to be read directly.
    bool copy(const Shard &shard, uint64_t index, std::byte *to);
    bool await_and_copy(Shard &shard, uint64_t index, std::byte *to, Job::Wait &wait);
    // This rank has published the shard: begins to read the slices that it holds and the host wanted in the minibatch before.
    void read_ahead(Shard &shard);
    // Before this rank arrives: waits for the reads that it has begun, and cancels those that nobody has wanted.
    void end_reads(Job::Wait &wait);

private:
    struct Read {
        Shard *shard;  // NULL: released
        uint64_t index;
        std::shared_ptr<Request> request;
    };
    // What was seen of a local rank that reads.
    struct Progress {
        uint64_t generation = 0;
        uint64_t bytes = 0;
        int64_t since_ns = 0;   // that it has read these bytes
        bool is_stuck = false;  // until it reads more
    };
    CacheEntry &entry(const Shard &shard, uint64_t index) const;
    void read(Shard &shard, uint64_t index, const ReadAhead &ahead);
    uint64_t next_order();
    bool is_wanted(const Shard &shard, uint64_t index) const;
    void cancel_unwanted();
    void await(const CacheEntry &entry, int owner, Job::Wait &wait);
    bool is_stuck(size_t reader);
    uint64_t generation() const { return job_.minibatch() + 1; }

    Job &job_;
    ShardDirectory &directory_;
    Counters &counters_;
    const NodeCacheShare share_;
    uint64_t used_ = 0;
    std::mutex mutex_;
    std::vector<Read> reads_;         // of this rank, that may go on
    std::vector<Progress> progress_;  // by local rank
    uint64_t order_generation_ = 0;
    uint64_t next_order_ = 0;  // how many slices this rank has wanted in that generation
};

}  // namespace odc

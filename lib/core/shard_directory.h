// SPDX-License-Identifier: Apache-2.0
// Announces this rank's posts and finds those of other owners: reads each peer's list once, in order, and keeps what
// this rank has no shard for yet, because ranks register in any order.
#pragma once

#include "core/job.h"
#include "core/shard.h"

#include <deque>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace odc {

class ShardDirectory {
public:
    explicit ShardDirectory(Job &job);

    // Links the post of the shard's owner `index` if it is there; NULL otherwise. A post that describes the shard
    // differently, and an owner that ended the minibatch without registering it, are job errors. Thread-safe.
    ShardRecord *find(Shard &shard, uint64_t index);

    // Whatever announcing shards in this minibatch may throw, so that announce throws nothing.
    void expect(uint64_t minibatch);
    void announce(Shard &shard) noexcept;
    // Ends the use of the shard's own post, by `minibatch`, and of the other owners'.
    void retire(Shard &shard, uint64_t minibatch);
    // Whether this rank has announced anything in this minibatch, or was about to.
    bool has_announced(uint64_t minibatch) const { return !latest_.empty() && latest_.back().minibatch == minibatch; }
    // At the end of a minibatch: if any rank has announced something, reads all lists to their ends and drops what this rank
    // has registered no shard for, so that owners can tell when a released post's record is read no more.
    void turn(uint64_t minibatch, bool anything_new);

private:
    struct Reader {
        std::atomic<uint64_t> *next;
        std::unordered_multimap<std::string_view, ShardRecord *> waiting;  // views of the posts' own names
    };
    struct Announced {
        uint64_t minibatch;
        uint64_t number;
    };
    struct Retired {
        uint64_t minibatch;
        uint64_t number;  // in the order of announcement
        uint64_t record;
        uint64_t bytes;
    };
    void read(int rank);
    // A GPU that fails is the job's error.
    std::optional<Shard::Bases> map_or_fail(const Shard &shard, int rank, const ShardRecord &post);
    // Where an owner's slice begins here; empty: its GPU memory has not come yet.
    std::optional<Shard::Bases> map(const Shard &shard, int rank, const ShardRecord &post);
    void unmap(const Shard &shard, uint64_t index, uint64_t minibatch);
    Arena &mine() { return *job_.peer(job_.rank()).arena; }

    Job &job_;
    std::mutex mutex_;
    std::vector<Reader> readers_;  // by rank

    std::atomic<uint64_t> *last_;  // of this rank's list
    uint64_t announced_ = 0;
    std::deque<Announced> latest_;  // the last post of each of the last minibatches
    uint64_t passed_ = 0;           // every peer has read the post of this number
    std::deque<Retired> retired_;
};

}  // namespace odc

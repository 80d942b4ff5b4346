// SPDX-License-Identifier: Apache-2.0
// Adds this rank's shards to its list and looks up the records of other owners: reads each peer's list once, in order, and
// keeps what this rank has no shard for yet, because ranks register in any order.
#pragma once

#include "core/job.h"
#include "core/shard.h"

#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace odc {

struct Counters;

class ShardDirectory {
public:
    ShardDirectory(Job &job, Counters &counters);

    // Links the record of the shard's owner `index` if it is there; NULL otherwise. A record that describes the shard
    // differently, and an owner that ended the minibatch without registering it, are job errors. Thread-safe.
    ShardRecord *look_up(Shard &shard, uint64_t index);
    // What the owner has done with its slice in this minibatch.
    enum class Presence { Awaited, Published, Released };
    Presence presence(Shard &shard, uint64_t index);
    // Whether the owner has published its slice in this minibatch. One that released it instead is a job error.
    bool is_published(Shard &shard, uint64_t index);
    void await_published(Shard &shard, uint64_t index, Job::Wait &wait);
    // Waits until the owner has published its slice or released it; false: released.
    bool await_presence(Shard &shard, uint64_t index, Job::Wait &wait);

    // Does all that may throw when shards are added in this minibatch, so that `add` throws nothing.
    void reserve();
    void add(Shard &shard) noexcept;
    // Ends the use of the shard's own record, and of the other owners'.
    void remove(Shard &shard);
    // Whether this rank has added anything in this minibatch, or was about to.
    bool has_added() const { return !latest_.empty() && latest_.back().minibatch == job_.minibatch(); }
    // At the end of a minibatch in which any rank has added something: reads all lists to their ends and drops what this rank
    // has registered no shard for, so that owners can tell when a released shard's record is read no more.
    void read_to_ends();
    // At the end of every minibatch: frees released records that no peer reads any more.
    void end_minibatch();

private:
    struct Reader {
        std::atomic<uint64_t> *next;
        std::unordered_multimap<std::string_view, ShardRecord *> waiting;  // views of the records' own names
    };
    struct Added {
        uint64_t minibatch;
        uint64_t number;
    };
    struct Removed {
        uint64_t minibatch;
        uint64_t number;
        uint64_t record;
        uint64_t bytes;
    };
    void read(int rank);
    template <class Ready>
    void await(Shard &shard, uint64_t index, Job::Wait &wait, const Ready &ready);
    std::string missing_publish(const Shard &shard, uint64_t index);

    Job &job_;
    Counters &counters_;
    std::mutex mutex_;
    std::vector<Reader> readers_;  // by rank

    std::atomic<uint64_t> *last_;  // of this rank's list
    uint64_t last_number_ = 0;
    std::deque<Added> latest_;  // the last record of each of the last minibatches
    uint64_t passed_ = 0;       // every peer has read the record of this number
    std::deque<Removed> removed_;
};

}  // namespace odc

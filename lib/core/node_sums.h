// SPDX-License-Identifier: Apache-2.0
// Node-local sums: what ranks of this host add to a slice of another host goes to a partial sum in this host's shared memory, which
// is sent to the owner once a minibatch. memory/partial_sum.h says when it may be read and used again.
//
// foreign_slices.h says which rank holds a sum. The owners of the host that have a slice add to it; each says once a minibatch
// that it adds nothing more, at odc_finish or when it arrives, and whoever says so last sends it by its own NIC and progress thread.
// It then arrives when the owner has applied the sums: so no rank waits for a call of another but in sync. A rank without a slice,
// which may release the shard at any time, adds directly, as do all to a slice for which the holder has no memory.
#pragma once

#include "core/job.h"
#include "core/shard.h"
#include "transport/transport.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace odc {

class ShardDirectory;
struct Counters;
struct ForeignSlice;
struct PartialSum;

class NodeSums {
public:
    NodeSums(Job &job, ShardDirectory &directory, Counters &counters)
        : job_(job), directory_(directory), counters_(counters) {}

    // This rank's partial sums of a new shard: as many as fit in `left` bytes.
    Shard::Held plan(const Shard &shard, uint64_t left) const;

    // Whether this rank adds to a partial sum of the slice, whose holder has published the shard in this minibatch.
    bool takes(const Shard &shard, uint64_t index) const;
    // That sum, as a slice of its holder.
    RemoteSlice sum(const Shard &shard, uint64_t index) const;

    // This rank adds nothing more to the shard in this minibatch, as `call` says. Waits for nobody: end() does the rest.
    void finish(Shard &shard, Call call);
    // Before this rank arrives: finishes all shards, and waits until what it sends is applied. After an interruption it is called
    // again.
    void end(const std::vector<Shard *> &shards, Job::Wait &wait);

private:
    struct Part {
        Shard *shard;
        uint64_t index;  // of the owner
    };
    struct Sent {
        Part part;
        std::shared_ptr<Request> request;
    };
    bool adds(const Shard &shard) const {
        return shard.engine_state != nullptr && shard.own_numel() > 0 && shard.description().gradient_type != 0;
    }
    PartialSum &partial_sum(const Shard &shard, const ForeignSlice &foreign) const;
    void count_in(Shard &shard, uint64_t index);
    bool send(const Part &part, Call call);
    void await_sent(Job::Wait &wait);
    uint64_t generation() const { return job_.minibatch() + 1; }

    Job &job_;
    ShardDirectory &directory_;
    Counters &counters_;
    std::vector<Part> unsent_;  // whose owners' publishes this rank has not heard of
    std::vector<Sent> sent_;    // that the owners may not have applied
};

}  // namespace odc

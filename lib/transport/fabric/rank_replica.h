// SPDX-License-Identifier: Apache-2.0
// A rank of another host as this process sees it: an image of its block and its posts, which its control messages keep up to
// date, so that whoever waits or looks for a shard does it as with a rank of this host. Only the progress thread writes.
#pragma once

#include "memory/shard_record.h"
#include "memory/shared_arena.h"
#include "transport/fabric/control_message.h"

#include <string>
#include <unordered_map>

namespace odc {

class RankReplica {
public:
    // Its records lie in `arena`, which several replicas share.
    RankReplica(Arena &arena, int rank, int size, int pid, const std::string &host);

    ControlBlock &block() const { return *block_; }
    uint64_t block_offset() const { return block_offset_; }

    // Each rings. Throw ODC_ERROR_INTERNAL when the control message makes no sense.
    void apply(const PostMessage &message);
    void apply(const ReleasedMessage &message);
    void apply(const PublishedMessage &message);
    void apply(const AllPublishedMessage &message);
    void apply(const ArrivedMessage &message);
    void apply(const ReducedMessage &message);
    void apply(const LeftMessage &message);
    void apply(const FailedMessage &message);
    void apply(const ByeMessage &message);
    // What it last did, `age_ns` ago.
    void last_call(uint64_t last_call, uint64_t minibatch, int64_t age_ns);
    // Nothing more will be heard of it.
    void lose(const std::string &why);

private:
    ShardRecord &post(uint64_t record);

    Arena &arena_;
    uint64_t block_offset_;
    ControlBlock *block_;
    std::atomic<uint64_t> *last_;                     // of its list of posts
    std::unordered_map<uint64_t, uint64_t> records_;  // by the owner's offset: here
};

}  // namespace odc

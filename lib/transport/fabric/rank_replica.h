// SPDX-License-Identifier: Apache-2.0
// A rank of another host as this process sees it: an image of its block and its posts, which its notices keep up to
// date, so that whoever waits or looks for a shard does it as with a rank of this host. Only the library thread writes.
#pragma once

#include "memory/shard_record.h"
#include "memory/shared_arena.h"
#include "transport/fabric/control_message.h"

#include <string>
#include <unordered_map>

namespace odc {

class Mirror {
public:
    // Its records lie in `arena`, which several mirrors share.
    Mirror(Arena &arena, int rank, int size, int pid, const std::string &host);

    RankBlock &block() const { return *block_; }
    uint64_t block_offset() const { return block_offset_; }

    // Each rings. Throw ODC_ERROR_INTERNAL when the notice makes no sense.
    void apply(const PostNotice &notice);
    void apply(const ReleasedNotice &notice);
    void apply(const PublishedNotice &notice);
    void apply(const AllPublishedNotice &notice);
    void apply(const ArrivedNotice &notice);
    void apply(const ReducedNotice &notice);
    void apply(const LeftNotice &notice);
    void apply(const FailedNotice &notice);
    void apply(const ByeNotice &notice);
    // What it last did, `age_ns` ago.
    void did(uint64_t did, uint64_t minibatch, int64_t age_ns);
    // Nothing more will be heard of it.
    void lose(const std::string &why);

private:
    Post &post(uint64_t record);

    Arena &arena_;
    uint64_t block_offset_;
    RankBlock *block_;
    std::atomic<uint64_t> *last_;                     // of its list of posts
    std::unordered_map<uint64_t, uint64_t> records_;  // by the owner's offset: here
};

}  // namespace odc

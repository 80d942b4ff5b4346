// SPDX-License-Identifier: Apache-2.0
// Finds the posts of other owners: reads each peer's list once, in order, and keeps what this rank has no shard for
// yet, because ranks register in any order.
#pragma once

#include "job.h"
#include "shard.h"

#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace odc {

class Posts {
public:
    explicit Posts(Job &job);

    // Links the post of the shard's owner `index` if it is there; NULL otherwise. A post that describes the shard
    // differently, and an owner that ended the minibatch without registering it, are job errors. Thread-safe.
    Post *find(Shard &shard, uint64_t index);

    // Announces a post of this rank's.
    void announce(const Shard &shard);

private:
    struct Reader {
        Link *next;
        std::unordered_multimap<std::string_view, Post *> waiting;  // views of the posts' own names
    };
    void read(int rank);

    Job &job_;
    std::mutex mutex_;
    std::vector<Reader> readers_;  // by rank
    Link *last_;                   // of this rank's list
};

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
#include "posts.h"

namespace odc {

Posts::Posts(Job &job) : job_(job), last_(&job.mine().first_post) {
    for (int rank = 0; rank < job.size(); ++rank) {
        readers_.push_back({&job.block(rank).first_post, {}});
    }
}

void Posts::announce(const Shard &shard) {
    const Allocation &where = shard.allocation();
    last_->segment = where.segment;
    last_->offset.store(where.offset, std::memory_order_release);
    last_ = &shard.post().next;
}

void Posts::read(int rank) {
    Reader &reader = readers_[static_cast<size_t>(rank)];
    while (const uint64_t offset = reader.next->offset.load(std::memory_order_acquire)) {
        auto *post = reinterpret_cast<Post *>(job_.peer(rank).arena->at(reader.next->segment, offset));
        reader.waiting.emplace(post->name(), post);
        reader.next = &post->next;
    }
}

Post *Posts::find(Shard &shard, uint64_t index) {
    if (Post *known = shard.linked(index)) {
        return known;
    }
    const std::lock_guard lock(mutex_);
    if (Post *known = shard.linked(index)) {
        return known;
    }
    const int rank = shard.owner(index);
    // Before its list: what it had registered by then is in the list.
    const bool passed = job_.block(rank).arrived.load(std::memory_order_acquire) > shard.registered;
    read(rank);
    auto &waiting = readers_[static_cast<size_t>(rank)].waiting;
    const auto [begin, end] = waiting.equal_range(shard.name());
    for (auto entry = begin; entry != end;) {
        Post *post = entry->second;
        const bool old = post->minibatch < shard.registered;
        if (old && post->released.load(std::memory_order_acquire) != 0) {
            entry = waiting.erase(entry);
            continue;
        }
        const std::string difference = shard.difference(*post, rank, job_.rank());
        if (!difference.empty()) {
            job_.fail_job(ODC_ERROR_MISMATCH, difference);
        }
        waiting.erase(entry);
        shard.link(index, post);
        return post;
    }
    if (passed) {
        job_.fail_job(ODC_ERROR_MISMATCH,
                      say(job_.who(job_.rank()), " registered shard \"", shard.name(), "\" in minibatch ",
                          shard.registered, ", but ", job_.who(rank), " ended that minibatch without registering it"));
    }
    return nullptr;
}

}  // namespace odc

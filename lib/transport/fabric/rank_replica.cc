// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/rank_replica.h"

#include <algorithm>
#include <cstring>

#include "base/deadline.h"
#include "base/error.h"
#include "memory/shard_record.h"

namespace odc {

Mirror::Mirror(Arena &arena, int rank, int size, int pid, const std::string &host)
    : arena_(arena), block_offset_(arena.allocate_record(sizeof(RankBlock))),
      block_(new (arena.record(block_offset_)) RankBlock{}), last_(&block_->first_post) {
    block_->magic = kRankBlockMagic;
    block_->rank = rank;
    block_->size = size;
    block_->pid = pid;
    std::strncpy(block_->host, host.c_str(), sizeof(block_->host) - 1);
    block_->did_at_ns = now_ns();
}

Post &Mirror::post(uint64_t record) {
    const auto known = records_.find(record);
    if (known == records_.end()) {
        fail(ODC_ERROR_INTERNAL, "rank ", block_->rank, " speaks of a shard that it has not announced here");
    }
    return *reinterpret_cast<Post *>(arena_.record(known->second));
}

void Mirror::apply(const PostNotice &notice) {
    auto known = records_.find(notice.record);
    if (known == records_.end()) {
        known = records_.emplace(notice.record, arena_.allocate_record(post_bytes(notice))).first;
    }
    auto &post = *reinterpret_cast<Post *>(arena_.record(known->second));
    write_post(post, notice, notice.record, notice.minibatch, notice.slice_numel);
    post.segment = {};
    post.region = 0;
    post.address = notice.address;
    post.key = notice.key;
    last_->store(known->second, std::memory_order_release);
    last_ = &post.next;
    ring(*block_);
}

void Mirror::apply(const ReleasedNotice &notice) {
    post(notice.record).released.store(1, std::memory_order_release);
    ring(*block_);
}

void Mirror::apply(const PublishedNotice &notice) {
    block_->opened.store(notice.minibatch + 1, std::memory_order_release);
    post(notice.record).published.store(notice.minibatch + 1, std::memory_order_release);
    ring(*block_);
}

void Mirror::apply(const AllPublishedNotice &notice) {
    block_->opened.store(notice.minibatch + 1, std::memory_order_release);
    for (const auto &[theirs, record] : records_) {
        auto &post = *reinterpret_cast<Post *>(arena_.record(record));
        if (post.released.load(std::memory_order_relaxed) == 0) {
            post.published.store(notice.minibatch + 1, std::memory_order_release);
        }
    }
    ring(*block_);
}

void Mirror::apply(const ArrivedNotice &notice) {
    block_->synced[notice.minibatch % 2] = notice.values;
    // The clocks of two hosts have nothing in common: what counts is when the word came.
    block_->arrived_at_ns[notice.minibatch % 2][0].store(now_ns(), std::memory_order_relaxed);
    block_->arrived.store(notice.minibatch + 1, std::memory_order_release);
    ring(*block_);
}

void Mirror::apply(const ReducedNotice &notice) {
    block_->reduced[notice.number % 2] = notice.values;
    block_->reductions.store(notice.number + 1, std::memory_order_release);
    ring(*block_);
}

void Mirror::apply(const LeftNotice &notice) {
    if (block_->state.load(std::memory_order_relaxed) != RankState::Running) {
        return;  // lost, or failed: it serves no more
    }
    block_->left_minibatch.store(notice.minibatch, std::memory_order_relaxed);
    block_->state.store(RankState::Left, std::memory_order_release);
    ring(*block_);
}

void Mirror::apply(const FailedNotice &notice) {
    const RankState state = block_->state.load(std::memory_order_relaxed);
    if (state == RankState::Left) {
        apply(ByeNotice{});  // it ends its connections, and serves no more
    }
    if (state != RankState::Running) {
        return;  // somebody may be reading why it is lost
    }
    record_failure(*block_, static_cast<odc_status>(notice.status), notice.text.c_str());
    ring(*block_);
}

void Mirror::did(uint64_t did, uint64_t minibatch, int64_t age_ns) {
    const auto known = records_.find(did & kDidRecord);
    const uint64_t record = known != records_.end() ? known->second : 0;
    block_->did_minibatch.store(minibatch, std::memory_order_relaxed);
    block_->did_at_ns.store(now_ns() - age_ns, std::memory_order_relaxed);
    block_->did.store((did & ~kDidRecord) | record, std::memory_order_release);
}

void Mirror::apply(const ByeNotice &) {
    if (!serves(block_->state.load(std::memory_order_relaxed))) {
        return;  // who waits must read what went wrong
    }
    block_->state.store(RankState::Gone, std::memory_order_release);
    ring(*block_);
}

void Mirror::lose(const std::string &why) {
    if (block_->state.load(std::memory_order_relaxed) == RankState::Left) {
        apply(ByeNotice{});
    } else if (block_->state.load(std::memory_order_relaxed) == RankState::Running) {
        put(block_->error_text, why);
        block_->state.store(RankState::Lost, std::memory_order_release);
        ring(*block_);
    }
}

}  // namespace odc

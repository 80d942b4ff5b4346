// SPDX-License-Identifier: Apache-2.0
#include "core/shard_directory.h"

#include <algorithm>

namespace odc {

ShardDirectory::ShardDirectory(Job &job) : job_(job), last_(&job.mine().first_record) {
    for (int rank = 0; rank < job.size(); ++rank) {
        readers_.push_back({&job.block(rank).first_record, {}});
    }
}

// ---- This rank's own ----

void ShardDirectory::expect(uint64_t minibatch) {
    if (latest_.empty() || latest_.back().minibatch != minibatch) {
        latest_.push_back({minibatch, announced_});
    }
}

void ShardDirectory::announce(Shard &shard) noexcept {
    shard.number = ++announced_;
    latest_.back().number = shard.number;
    last_->store(shard.record(), std::memory_order_release);
    last_ = &shard.post().next;
}

void ShardDirectory::retire(Shard &shard, uint64_t minibatch) {
    shard.post().released.store(1, std::memory_order_release);
    retired_.push_back({minibatch, shard.number, shard.record(), shard.record_bytes()});
    for (uint64_t index = 0; index < shard.owners(); ++index) {
        if (index != shard.own_index() && shard.linked(index) != nullptr) {
            unmap(shard, index, minibatch);
        }
    }
}

// ---- The other owners' ----

void ShardDirectory::read(int rank) {
    Reader &reader = readers_[static_cast<size_t>(rank)];
    while (const uint64_t offset = reader.next->load(std::memory_order_acquire)) {
        auto *post = reinterpret_cast<ShardRecord *>(job_.peer(rank).arena->record(offset));
        if (rank != job_.rank()) {  // also one that does not list this rank: find() says how the rank lists differ
            reader.waiting.emplace(post->name(), post);
        }
        reader.next = &post->next;
    }
}

std::optional<Shard::Bases> ShardDirectory::map_or_fail(const Shard &shard, int rank, const ShardRecord &post) {
    try {
        return map(shard, rank, post);
    } catch (const Error &error) {
        if (error.status() != ODC_ERROR_DEVICE) {
            throw;
        }
        job_.fail_job(ODC_ERROR_DEVICE,
                      say(job_.who(job_.rank()), " cannot map the GPU memory of ", job_.who(rank), ": ", error.what()));
    }
}

std::optional<Shard::Bases> ShardDirectory::map(const Shard &shard, int rank, const ShardRecord &post) {
    std::byte *host = nullptr;
    std::byte *gpu = nullptr;
    if (shard.on_gpu() && job_.peer(rank).gpu_route.is_direct()) {
        gpu = post.region != 0 ? job_.cuda()->map_region(rank, post.region) : nullptr;
        if (post.region != 0 && gpu == nullptr) {
            return std::nullopt;
        }
    } else if (post.segment.bytes > 0) {
        host = job_.peer(rank).arena->map(post.segment);
    }
    const Shard::Bases bases = shard.bases_of(post, host, gpu);
    if (bases.mirror != nullptr) {  // streams will read it
        try {
            job_.cuda()->pin_pages(bases.mirror, bases.mirror_bytes);
        } catch (...) {
            job_.peer(rank).arena->unmap(host);
            throw;
        }
    }
    return bases;
}

void ShardDirectory::unmap(const Shard &shard, uint64_t index, uint64_t minibatch) {
    const int rank = shard.owner(index);
    const Shard::Bases &bases = shard.bases(index);
    if (bases.gpu != nullptr) {
        job_.cuda()->unmap_region(rank, bases.region, minibatch);
    }
    if (bases.mirror != nullptr) {
        job_.cuda()->unpin_pages(bases.mirror);
    }
    if (bases.host != nullptr) {
        job_.peer(rank).arena->unmap(bases.host);
    }
}

ShardRecord *ShardDirectory::find(Shard &shard, uint64_t index) {
    if (ShardRecord *known = shard.linked(index)) {
        return known;
    }
    const std::lock_guard lock(mutex_);
    if (ShardRecord *known = shard.linked(index)) {
        return known;
    }
    const int rank = shard.owner(index);
    // Before its list: what it had registered by then is in the list.
    const bool passed = job_.block(rank).arrived.load(std::memory_order_acquire) > shard.registered;
    read(rank);
    auto &waiting = readers_[static_cast<size_t>(rank)].waiting;
    const auto [begin, end] = waiting.equal_range(shard.name());
    // Of its next minibatch there may be another of this name.
    auto found = std::find_if(begin, end, [&](const auto &entry) { return shard.stands(*entry.second); });
    if (found == end) {
        found = begin;
    }
    if (found != end) {
        ShardRecord *post = found->second;
        const std::string difference = shard.difference(*post, rank, job_.rank());
        if (!difference.empty()) {
            job_.fail_job(ODC_ERROR_MISMATCH, difference);
        }
        const std::optional<Shard::Bases> bases = map_or_fail(shard, rank, *post);
        if (!bases) {
            return nullptr;  // its region is in the mail
        }
        waiting.erase(found);
        shard.link(index, *post, *bases);
        return post;
    }
    if (passed) {
        job_.fail_job(ODC_ERROR_MISMATCH,
                      say(job_.who(job_.rank()), " registered shard \"", shard.name(), "\" in minibatch ",
                          shard.registered, ", but ", job_.who(rank), " ended that minibatch without registering it"));
    }
    return nullptr;
}

void ShardDirectory::turn(uint64_t minibatch, bool anything_new) {
    const std::lock_guard lock(mutex_);
    for (int rank = 0; anything_new && rank < job_.size(); ++rank) {
        read(rank);
        std::erase_if(readers_[static_cast<size_t>(rank)].waiting, [&](const auto &entry) {
            return entry.second->minibatch.load(std::memory_order_relaxed) <= minibatch;
        });
    }
    // Every peer arrived in this minibatch, so each has made this turn in the one before.
    const auto old = [&](uint64_t then) { return then < minibatch; };
    while (!latest_.empty() && old(latest_.front().minibatch)) {
        passed_ = latest_.front().number;
        latest_.pop_front();
    }
    // A reader stands at the end of the post that it read last, so the one of number passed_ has to stay.
    std::erase_if(retired_, [&](const Retired &one) {
        const bool done = old(one.minibatch) && one.number < passed_;
        if (done) {
            mine().free_record(one.record, one.bytes);
        }
        return done;
    });
}

}  // namespace odc

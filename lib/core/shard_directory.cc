// SPDX-License-Identifier: Apache-2.0
#include "core/shard_directory.h"

#include <algorithm>
#include <optional>

#include "base/counters.h"
#include "bootstrap/peer.h"
#include "core/operation.h"
#include "core/wait.h"

namespace odc {

ShardDirectory::ShardDirectory(Job &job, Counters &counters)
    : job_(job), counters_(counters), last_(&job.mine().first_record) {
    for (int rank = 0; rank < job.size(); ++rank) {
        readers_.push_back({&job.block(rank).first_record, {}});
    }
}

// ---- This rank's own ----

void ShardDirectory::reserve() {
    if (!has_added()) {
        latest_.push_back({job_.minibatch(), last_number_});
    }
}

void ShardDirectory::add(Shard &shard) noexcept {
    shard.number = ++last_number_;
    latest_.back().number = shard.number;
    last_->store(shard.record_offset(), std::memory_order_release);
    last_ = &shard.record().next;
}

void ShardDirectory::remove(Shard &shard) {
    shard.record().released.store(1, std::memory_order_release);
    removed_.push_back({job_.minibatch(), shard.number, shard.record_offset(), shard.record_bytes()});
    for (uint64_t index = 0; index < shard.owners(); ++index) {
        if (index != shard.own_index() && shard.linked(index) != nullptr) {
            shard.engine().unmap(shard, index);
        }
    }
}

// ---- The other owners' ----

void ShardDirectory::read(int rank) {
    Reader &reader = readers_[static_cast<size_t>(rank)];
    while (const uint64_t offset = reader.next->load(std::memory_order_acquire)) {
        auto *record = reinterpret_cast<ShardRecord *>(job_.peer(rank).arena->record(offset));
        if (rank != job_.rank()) {  // also one that does not list this rank: look_up says how the rank lists differ
            reader.waiting.emplace(record->name(), record);
        }
        reader.next = &record->next;
    }
}

ShardRecord *ShardDirectory::look_up(Shard &shard, uint64_t index) {
    if (ShardRecord *known = shard.linked(index)) {
        return known;
    }
    const std::lock_guard lock(mutex_);
    if (ShardRecord *known = shard.linked(index)) {
        return known;
    }
    const int rank = shard.owner(index);
    // `arrived` is read before the list, which then has all that the owner registered before it arrived.
    const bool passed = job_.block(rank).arrived.load(std::memory_order_acquire) > shard.registered;
    read(rank);
    auto &waiting = readers_[static_cast<size_t>(rank)].waiting;
    const auto [begin, end] = waiting.equal_range(shard.name());
    // An owner may be a minibatch ahead and have registered another shard of this name: this minibatch's record goes first.
    auto found = std::find_if(begin, end, [&](const auto &entry) { return shard.stands(*entry.second); });
    if (found == end) {
        found = begin;
    }
    if (found != end) {
        ShardRecord *record = found->second;
        const std::string difference = shard.difference(*record, rank, job_.rank());
        if (!difference.empty()) {
            job_.fail_job(ODC_ERROR_MISMATCH, difference);
        }
        const std::optional<Shard::Bases> bases = shard.engine().map(shard, rank, *record);
        if (!bases) {
            return nullptr;
        }
        waiting.erase(found);
        shard.link(index, *record, *bases);
        return record;
    }
    if (passed) {
        job_.fail_job(ODC_ERROR_MISMATCH,
                      formatted("{} registered shard \"{}\" in minibatch {}, but {} ended that "
                                "minibatch without registering it",
                                job_.who(job_.rank()), shard.name(), shard.registered, job_.who(rank)));
    }
    return nullptr;
}

ShardDirectory::Presence ShardDirectory::presence(Shard &shard, uint64_t index) {
    // Calls that get here have published the own slice. On a device its word may come later, but so does the work that reads it.
    if (shard.slices().numel(index) == 0 || index == shard.own_index()) {
        return Presence::Published;
    }
    ShardRecord *record = look_up(shard, index);
    if (record == nullptr) {
        return Presence::Awaited;
    }
    if (record->published.load(std::memory_order_acquire) > job_.minibatch() && shard.stands(*record)) {
        return Presence::Published;
    }
    const bool released = record->released.load(std::memory_order_acquire) != 0 || !shard.stands(*record);
    return released ? Presence::Released : Presence::Awaited;
}

bool ShardDirectory::is_published(Shard &shard, uint64_t index) {
    const Presence seen = presence(shard, index);
    if (seen == Presence::Released) {
        job_.fail_job(ODC_ERROR_MISMATCH,
                      formatted("{} released shard \"{}\", but {} uses it in minibatch {}",
                                job_.who(shard.owner(index)), shard.name(), job_.who(job_.rank()), job_.minibatch()));
    }
    return seen == Presence::Published;
}

std::string ShardDirectory::missing_publish(const Shard &shard, uint64_t index) {
    const int owner = shard.owner(index);
    const bool registered = shard.linked(index) != nullptr;
    return formatted("{} has not {} shard \"{}\" in minibatch {}{}; it {}", job_.who(owner),
                     registered ? "published" : "registered", shard.name(), job_.minibatch(),
                     registered && shard.on_device() ? ", or the stream that does it has not come so far" : "",
                     job_.what(owner));
}

template <class Ready>
void ShardDirectory::await(Shard &shard, uint64_t index, Job::Wait &wait, const Ready &ready) {
    if (ready()) {
        return;
    }
    const int64_t begin = now_ns();
    wait.describe([this, &shard, index] { return missing_publish(shard, index); });
    if (shard.on_device()) {
        wait.until_seen([&] { return shard.owner(index); }, ready);
    } else {
        wait.until(shard.owner(index), ready);
    }
    const auto waited = static_cast<uint64_t>(now_ns() - begin);
    counters_.publish_wait_ns.add(waited);
    counters_.peers[static_cast<size_t>(shard.owner(index))].publish_wait_ns.add(waited);
}

void ShardDirectory::await_published(Shard &shard, uint64_t index, Job::Wait &wait) {
    await(shard, index, wait, [&] { return is_published(shard, index); });
}

bool ShardDirectory::await_presence(Shard &shard, uint64_t index, Job::Wait &wait) {
    Presence seen = Presence::Awaited;
    await(shard, index, wait, [&] { return (seen = presence(shard, index)) != Presence::Awaited; });
    return seen == Presence::Published;
}

void ShardDirectory::read_to_ends() {
    const uint64_t minibatch = job_.minibatch();
    const std::lock_guard lock(mutex_);
    for (int rank = 0; rank < job_.size(); ++rank) {
        read(rank);
        std::erase_if(readers_[static_cast<size_t>(rank)].waiting, [&](const auto &entry) {
            return entry.second->minibatch.load(std::memory_order_relaxed) <= minibatch;
        });
    }
}

void ShardDirectory::end_minibatch() {
    const uint64_t minibatch = job_.minibatch();
    const std::lock_guard lock(mutex_);
    // Every peer arrived in this minibatch, so each has come past here in the one before.
    const auto old = [&](uint64_t then) { return then < minibatch; };
    while (!latest_.empty() && old(latest_.front().minibatch)) {
        passed_ = latest_.front().number;
        latest_.pop_front();
    }
    // A reader stands at the end of the record that it read last, so the one of number passed_ has to stay.
    std::erase_if(removed_, [&](const Removed &one) {
        const bool done = old(one.minibatch) && one.number < passed_;
        if (done) {
            job_.peer(job_.rank()).arena->free_record(one.record, one.bytes);
        }
        return done;
    });
}

}  // namespace odc

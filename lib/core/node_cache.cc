// SPDX-License-Identifier: Apache-2.0
#include "core/node_cache.h"

#include <algorithm>
#include <utility>

#include "base/counters.h"
#include "base/element_type.h"
#include "bootstrap/peer.h"
#include "core/foreign_slices.h"
#include "core/shard_directory.h"
#include "core/wait.h"
#include "memory/host_kernels.h"
#include "topology/host.h"

namespace odc {

namespace {

// A reader of which no byte comes for so long is stopped, or its network hangs; at most a quarter of the deadline.
constexpr int64_t kStuckMs = 5'000;

uint64_t slice_bytes_of(const Shard &shard, uint64_t index) {
    return shard.slices().numel(index) * element_size(shard.description().parameter_type);
}

// Whoever waits for an entry also waits for the owner of its slice, whose host is then asked whether it is alive.
class OwnerWatch {
public:
    explicit OwnerWatch(Doorbell &doorbell) : doorbell_(doorbell) { doorbell_.waiters.fetch_add(1); }
    ~OwnerWatch() { doorbell_.waiters.fetch_sub(1); }
    OwnerWatch(const OwnerWatch &) = delete;
    OwnerWatch &operator=(const OwnerWatch &) = delete;

private:
    Doorbell &doorbell_;
};

// The memory that a read writes to stays mapped until it has ended, whatever is released meanwhile.
class Mapped {
public:
    Mapped(std::shared_ptr<Arena> arena, const Segment &segment)
        : arena_(std::move(arena)), start_(arena_->map(segment)) {}
    ~Mapped() { arena_->unmap(start_); }
    Mapped(const Mapped &) = delete;
    Mapped &operator=(const Mapped &) = delete;

private:
    std::shared_ptr<Arena> arena_;
    std::byte *start_;
};

}  // namespace

NodeCache::NodeCache(Job &job, ShardDirectory &directory, Counters &counters, const NodeCacheShare &share)
    : job_(job), directory_(directory), counters_(counters), share_(share), progress_(job.local_peers().size()) {}

// ---- Shards ----

uint64_t NodeCache::room() const {
    const uint64_t left = share_.bytes - std::min(share_.bytes, used_);
    return share_.part_of_free == 0 ? left : std::min(left, available_memory() / share_.part_of_free);
}

Shard::Held NodeCache::plan(const Shard &shard, uint64_t left) const {
    return shard.description().parameter_type != 0 ? fit(shard, &ForeignSlice::entry, left) : Shard::Held{};
}

void NodeCache::forget(const Shard &shard) {
    used_ -= shard.held_bytes();
    const std::lock_guard lock(mutex_);
    for (Read &read : reads_) {
        if (read.shard == &shard) {
            read.request->cancel();  // its owner need not publish any more
            read.shard = nullptr;
        }
    }
}

// ---- Gathers ----

bool NodeCache::caches(const Shard &shard, uint64_t index) const { return foreign_slice(shard, index) != nullptr; }

uint64_t NodeCache::holder(const Shard &shard, uint64_t index) const { return foreign_slice(shard, index)->holder; }

bool NodeCache::has_entry(const Shard &shard, uint64_t index) const {
    const ForeignSlice &foreign = *foreign_slice(shard, index);
    return foreign.number < shard.linked(foreign.holder)->cache_entries;
}

CacheEntry &NodeCache::entry(const Shard &shard, uint64_t index) const {
    const ForeignSlice &foreign = *foreign_slice(shard, index);
    std::byte *const segment = shard.bases(foreign.holder).host;
    return *reinterpret_cast<CacheEntry *>(segment + shard.linked(foreign.holder)->cache + foreign.entry.begin);
}

void NodeCache::want(Shard &shard, uint64_t index) {
    const uint64_t order = next_order();
    std::atomic<uint64_t> &want = entry(shard, index).want;
    uint64_t seen = want.load(std::memory_order_relaxed);
    if (CacheWant(seen).generation() < generation() &&
        want.compare_exchange_strong(seen, CacheWant(generation(), order).value(), std::memory_order_relaxed)) {
        job_.block(shard.owner(holder(shard, index))).wants.fetch_add(1, std::memory_order_release);
    }
    read(shard, index, {});
}

uint64_t NodeCache::next_order() {
    const std::lock_guard lock(mutex_);
    if (std::exchange(order_generation_, generation()) != generation()) {
        next_order_ = 0;
    }
    return next_order_++;
}

void NodeCache::read_ahead(Shard &shard) try {
    for (const uint64_t index : held_slices(shard)) {
        if (!has_entry(shard, index) || shard.linked(index) == nullptr) {
            continue;
        }
        const std::atomic<uint64_t> &want = entry(shard, index).want;
        const CacheWant last(want.load(std::memory_order_relaxed));
        if (last.generation() > 0 && last.generation() + 1 == generation()) {
            read(shard, index, {&want, CacheWant(generation(), 0).value(), last.order()});
        }
    }
} catch (const std::exception &error) {  // no error: the rank that gathers will read the slice itself
    job_.log().debug("does not read shard \"{}\" ahead: {}", shard.name(), error.what());
}

void NodeCache::read(Shard &shard, uint64_t index, const ReadAhead &ahead) {
    CacheEntry &entry = this->entry(shard, index);
    const CacheWord reading(generation(), CacheState::Reading, job_.local_rank());
    uint64_t seen = entry.word.load(std::memory_order_relaxed);
    do {
        if (CacheWord(seen).generation() >= generation()) {
            return;
        }
    } while (!entry.word.compare_exchange_weak(seen, reading.value(), std::memory_order_acq_rel));
    const CacheWord full(generation(), CacheState::Full, job_.local_rank());
    // A read ahead that ends without all bytes leaves the entry empty, so a rank that wants the slice later reads it again.
    const CacheWord incomplete =
        ahead.wanted != nullptr ? CacheWord::empty() : CacheWord(generation(), CacheState::GivenUp, job_.local_rank());
    const auto end = [&entry, &mine = job_.mine(), full, incomplete](bool complete) {
        entry.word.store((complete ? full : incomplete).value(), std::memory_order_release);
        ring(mine);
    };
    const uint64_t holder = this->holder(shard, index);
    try {
        auto mapped = std::make_shared<Mapped>(job_.peer(shard.owner(holder)).arena, shard.linked(holder)->segment);
        const std::lock_guard lock(mutex_);
        if (reads_.size() == reads_.capacity()) {
            reads_.reserve(2 * reads_.size() + 16);
        }
        Endpoint &owner = job_.endpoint_to(shard.owner(index));
        StartedGet started = owner.start_get(shard.slice(index), entry.bytes(), generation(),
                                             {[end, mapped](bool complete) { end(complete); }, ahead});
        reads_.push_back({&shard, index, std::move(started.request)});
    } catch (...) {
        end(false);
        throw;
    }
}

bool NodeCache::copy(const Shard &shard, uint64_t index, std::byte *to) {
    CacheEntry &entry = this->entry(shard, index);
    const CacheWord word(entry.word.load(std::memory_order_acquire));
    if (word.generation() != generation() || word.state() != CacheState::Full) {
        return false;
    }
    const uint64_t bytes = slice_bytes_of(shard, index);
    copy_bytes(to, entry.bytes(), bytes);
    counters_.served_bytes.add(bytes);
    return true;
}

bool NodeCache::await_and_copy(Shard &shard, uint64_t index, std::byte *to, Job::Wait &wait) {
    const int owner = shard.owner(index);
    directory_.await_published(shard, index, wait);
    const CacheEntry &entry = this->entry(shard, index);
    wait.describe([&, owner] {
        const size_t reader = CacheWord(entry.word.load(std::memory_order_relaxed)).reader();
        return formatted(
            "the slice of {} of shard \"{}\" is on its way to the node cache, where rank {} reads it; the owner {}",
            job_.who(owner), shard.name(), job_.local_peers()[reader], job_.what(owner));
    });
    const auto comes = [&] {
        const CacheWord now(entry.word.load(std::memory_order_acquire));
        return now.generation() < generation() || (now.state() == CacheState::Reading && !is_stuck(now.reader()));
    };
    do {
        read(shard, index, {});  // begins again where a read ahead was cancelled; else one is under way
        await(entry, owner, wait);
    } while (comes());
    const bool copied = copy(shard, index, to);
    if (!copied) {
        job_.log().debug("reads the slice of rank {} of shard \"{}\" for itself, as it does not come to the node cache",
                         owner, shard.name());
    }
    return copied;
}

void NodeCache::await(const CacheEntry &entry, int owner, Job::Wait &wait) {
    const auto word = [&entry] { return CacheWord(entry.word.load(std::memory_order_acquire)); };
    const size_t reader = word().reader();
    const OwnerWatch owner_watch(job_.block(owner).doorbell);
    const auto reads_on = [&](const CacheWord &now) {
        return now.state() == CacheState::Reading && now.reader() == reader;
    };
    wait.until(job_.local_peers()[reader], [&] { return !reads_on(word()) || is_stuck(reader); });
}

// Kept from wait to wait, so that a stopped reader of many slices, or a wait that is often interrupted, costs the time once.
bool NodeCache::is_stuck(size_t reader) {
    if (reader == job_.local_rank()) {
        return false;
    }
    const ControlBlock &block = job_.block(job_.local_peers()[reader]);
    const uint64_t bytes = block.read_bytes.load(std::memory_order_relaxed);
    const int64_t now = now_ns();
    const std::lock_guard lock(mutex_);
    Progress &seen = progress_[reader];
    // A rank that has arrived in a sync since then was not stopped.
    if (bytes != seen.bytes || generation() != seen.generation) {
        seen = {generation(), bytes, now, false};
    }
    seen.is_stuck = seen.is_stuck || (now - seen.since_ns) / 1'000'000 > std::min(kStuckMs, job_.timeout_ms() / 4);
    return seen.is_stuck || block.state.load(std::memory_order_acquire) != RankState::Running;
}

bool NodeCache::is_wanted(const Shard &shard, uint64_t index) const {
    return CacheWant(entry(shard, index).want.load(std::memory_order_relaxed)).generation() == generation();
}

void NodeCache::cancel_unwanted() {
    for (Read &read : reads_) {
        if (read.shard != nullptr && read.request->is_pending() && !is_wanted(*read.shard, read.index)) {
            read.request->cancel();
            read.shard = nullptr;
        }
    }
}

// An interrupted gather leaves reads behind, too.
void NodeCache::end_reads(Job::Wait &wait) {
    cancel_unwanted();
    for (; !reads_.empty(); reads_.pop_back()) {
        const Read &read = reads_.back();
        const int owner = read.request->owner();
        if (read.shard != nullptr) {
            directory_.await_published(*read.shard, read.index, wait);
        }
        wait.describe([&, owner] {
            return formatted("a slice of {} is on its way to the node cache; it {}", job_.who(owner), job_.what(owner));
        });
        wait.until_served(owner, [&] { return !read.request->is_pending(); });
    }
}

}  // namespace odc

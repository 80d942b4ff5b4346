// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/rank_replica.h"

#include <algorithm>
#include <cstring>

#include "base/deadline.h"
#include "base/error.h"
#include "memory/shard_record.h"

namespace odc {

Arrival TimedArrival::aged() const {
    Arrival aged = arrival;
    aged.age_ns = now_ns() - at_ns;
    return aged;
}

RankReplica::RankReplica(Arena &arena, int rank, int size, int pid, const std::string &host)
    : arena_(arena), block_offset_(arena.allocate_record(sizeof(ControlBlock))),
      block_(new (arena.record(block_offset_)) ControlBlock{}), last_(&block_->first_record) {
    block_->rank = rank;
    block_->size = size;
    block_->pid = pid;
    std::strncpy(block_->host, host.c_str(), sizeof(block_->host) - 1);
    block_->last_call_at_ns = now_ns();
    block_->heard_at_ns = block_->last_call_at_ns.load();
}

ShardRecord &RankReplica::find(uint64_t record) {
    const auto known = records_.find(record);
    if (known == records_.end()) {
        fail(ODC_ERROR_INTERNAL, "rank {} names a shard that it has not registered", block_->rank);
    }
    return *reinterpret_cast<ShardRecord *>(arena_.record(known->second));
}

void RankReplica::apply(const RegisteredMessage &message) {
    auto known = records_.find(message.record);
    if (known == records_.end()) {
        known = records_.emplace(message.record, arena_.allocate_record(shard_record_bytes(message))).first;
    }
    auto &record = *reinterpret_cast<ShardRecord *>(arena_.record(known->second));
    write_shard_record(record, message, message.record, message.minibatch, message.slice_numel);
    record.segment = {};
    record.region = 0;
    record.address = message.address;
    record.key = message.key;
    last_->store(known->second, std::memory_order_release);
    last_ = &record.next;
    apply_broadcast();
    ring(*block_);
}

void RankReplica::apply(const ReleasedMessage &message) {
    find(message.record).released.store(1, std::memory_order_release);
    ring(*block_);
}

void RankReplica::apply(const PublishedMessage &message) {
    open(message.minibatch, message.reductions);
    ShardRecord &record = find(message.record);
    record.votes[(message.minibatch + 1) % 2].store(static_cast<int16_t>(message.vote), std::memory_order_relaxed);
    record.published.store(message.minibatch + 1, std::memory_order_release);
    ring(*block_);
}

void RankReplica::apply(const AllPublishedMessage &message) {
    open(message.minibatch, message.reductions);
    for (const auto &[theirs, offset] : records_) {
        auto &record = *reinterpret_cast<ShardRecord *>(arena_.record(offset));
        if (record.released.load(std::memory_order_relaxed) == 0) {
            record.published.store(message.minibatch + 1, std::memory_order_release);
        }
    }
    apply_broadcast();
    ring(*block_);
}

// Before this rank has ended call number - 2 that one cannot arrive in `number`, so nobody reads what is overwritten.
void RankReplica::apply(uint64_t number, const Arrival &arrival) {
    if (number < known_arrivals_) {
        return;
    }
    if (number > known_arrivals_) {
        fail(ODC_ERROR_INTERNAL, "rank {} has arrived in its collective call {}, but not in its call {}", block_->rank,
             number, known_arrivals_);
    }
    arrivals_[number % 2] = {arrival, now_ns() - arrival.age_ns};
    known_arrivals_ = number + 1;
    settle();
}

void RankReplica::apply_broadcast() {
    ++broadcasts_;
    settle();
}

// A rank publishes after its reductions, but others pass these on: who waits for one must not take the publish for the lack of it.
void RankReplica::open(uint64_t minibatch, uint64_t reductions) {
    opened_ = minibatch + 1;
    reductions_before_ = reductions;
    settle();
}

// Of arrivals that wait there are two at most: a rank is one call ahead of another, not two.
void RankReplica::settle() {
    while (settled_arrivals_ < known_arrivals_) {
        const TimedArrival &next = arrivals_[settled_arrivals_ % 2];
        if (broadcasts_ < next.arrival.broadcasts) {
            break;
        }
        settle(next);
        ++settled_arrivals_;
    }
    if (opened_ > block_->opened.load(std::memory_order_relaxed) &&
        block_->reductions.load(std::memory_order_relaxed) >= reductions_before_) {
        block_->opened.store(opened_, std::memory_order_release);
        ring(*block_);
    }
}

void RankReplica::settle(const TimedArrival &one) {
    const bool is_sync = one.arrival.call == Call::Sync;
    std::atomic<uint64_t> &count = is_sync ? block_->arrived : block_->reductions;
    const uint64_t before = count.load(std::memory_order_relaxed);
    const size_t parity = before % 2;
    (is_sync ? block_->synced : block_->reduced)[parity] = one.arrival.values;
    if (is_sync) {
        block_->arrived_at_ns[parity][0].store(one.at_ns, std::memory_order_relaxed);
        block_->speeds[parity][0].store(one.arrival.speed, std::memory_order_relaxed);
    }
    count.store(before + 1, std::memory_order_release);
    ring(*block_);
}

void RankReplica::apply(const LeftMessage &message) {
    if (block_->state.load(std::memory_order_relaxed) != RankState::Running) {
        return;  // lost or failed
    }
    block_->left_minibatch.store(message.minibatch, std::memory_order_relaxed);
    block_->state.store(RankState::Left, std::memory_order_release);
    ring(*block_);
}

void RankReplica::apply(const FailedMessage &message) {
    const RankState state = block_->state.load(std::memory_order_relaxed);
    if (state == RankState::Left) {
        apply(GoodbyeMessage{});  // it closes its endpoint, so its slices are no longer reachable
    }
    if (state != RankState::Running) {
        return;  // a thread may be reading its error text
    }
    record_failure(*block_, static_cast<odc_status>(message.status), message.text.c_str());
    ring(*block_);
}

void RankReplica::last_call(uint64_t last_call, uint64_t minibatch, int64_t age_ns) {
    const auto known = records_.find(last_call & kLastCallRecord);
    const uint64_t record = known != records_.end() ? known->second : 0;
    block_->last_minibatch.store(minibatch, std::memory_order_relaxed);
    const int64_t now = now_ns();
    block_->heard_at_ns.store(now, std::memory_order_relaxed);
    block_->last_call_at_ns.store(now - age_ns, std::memory_order_relaxed);
    block_->last_call.store((last_call & ~kLastCallRecord) | record, std::memory_order_release);
}

void RankReplica::apply(const GoodbyeMessage &) {
    if (!serves(block_->state.load(std::memory_order_relaxed))) {
        return;  // keeps the error for waiters
    }
    block_->state.store(RankState::Gone, std::memory_order_release);
    ring(*block_);
}

void RankReplica::mark_lost(const std::string &why) {
    if (block_->state.load(std::memory_order_relaxed) == RankState::Left) {
        apply(GoodbyeMessage{});
    } else if (block_->state.load(std::memory_order_relaxed) == RankState::Running) {
        put(block_->error_text, why);
        block_->state.store(RankState::Lost, std::memory_order_release);
        ring(*block_);
    }
}

}  // namespace odc

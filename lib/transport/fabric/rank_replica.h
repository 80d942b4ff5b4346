// SPDX-License-Identifier: Apache-2.0
// A replica of a remote rank's control block and shard records in this process, which its control messages keep up to date,
// so that waits and shard lookups are the same as for local peers. Written by the progress thread only.
#pragma once

#include "memory/shard_record.h"
#include "memory/shared_arena.h"
#include "transport/fabric/control_message.h"

#include <string>
#include <unordered_map>

namespace odc {

// An arrival and when it was, by this host's clock.
struct TimedArrival {
    Arrival arrival;
    int64_t at_ns;
    Arrival aged() const;
};

class RankReplica {
public:
    // Allocates in `arena`, which several replicas share.
    RankReplica(Arena &arena, int rank, int size, int pid, const std::string &host);

    ControlBlock &block() const { return *block_; }
    uint64_t block_offset() const { return block_offset_; }

    // Apply a message and ring the doorbell. Throw ODC_ERROR_INTERNAL for an invalid message.
    void apply(const RegisteredMessage &message);
    void apply(const ReleasedMessage &message);
    void apply(const PublishedMessage &message);
    void apply(const AllPublishedMessage &message);
    void apply(const LeftMessage &message);
    void apply(const FailedMessage &message);
    void apply(const GoodbyeMessage &message);
    // The rank has arrived in its collective call `number`, which may have been known. Its block says so once all has come that the
    // rank told before.
    void apply(uint64_t number, const Arrival &arrival);
    uint64_t known_arrivals() const { return known_arrivals_; }
    // What apply() was given for the call, one of the last two, to be passed on.
    Arrival arrival(uint64_t number) const { return arrivals_[number % 2].aged(); }
    // The rank's last call, `age_ns` ago.
    void last_call(uint64_t last_call, uint64_t minibatch, int64_t age_ns);
    // The rank cannot be reached any more.
    void mark_lost(const std::string &why);

private:
    ShardRecord &find(uint64_t record);
    void apply_broadcast();
    void open(uint64_t minibatch, uint64_t reductions);
    void settle();
    void settle(const TimedArrival &one);

    Arena &arena_;
    uint64_t block_offset_;
    ControlBlock *block_;
    std::atomic<uint64_t> *last_;                     // the `next` of its last shard record
    std::unordered_map<uint64_t, uint64_t> records_;  // offsets here, by the owner's offsets
    uint64_t broadcasts_ = 0;                         // applied
    TimedArrival arrivals_[2] = {};                   // by call parity
    uint64_t known_arrivals_ = 0;
    uint64_t settled_arrivals_ = 0;   // that the block tells
    uint64_t opened_ = 0;             // what the block is to tell
    uint64_t reductions_before_ = 0;  // once it tells these
};

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// Shards in host memory: the caller's thread copies and adds on this host, the progress thread between hosts.
#pragma once

#include "core/job.h"
#include "core/operation.h"

namespace odc {

struct Counters;
class NodeCache;
struct NodeCacheShare;
class NodeSums;
class RemoteMemory;
class ShardDirectory;

class HostOperations final : public Engine {
public:
    // Throws ODC_ERROR_ARGUMENT for memory that the host cannot use; `what` names it.
    using CheckBuffer = void (*)(const void *buffer, const std::string &what);
    // `check`: NULL where this rank has no other memory.
    HostOperations(Job &job, ShardDirectory &directory, RemoteMemory &remote_memory, Counters &counters,
                   const NodeCacheShare &cache, CheckBuffer check);
    ~HostOperations() override;

    void attach(const std::vector<Shard *> &shards) override;
    std::string still_enqueued() override { return {}; }
    void detach(Shard &shard) override;
    std::optional<Shard::Bases> map(const Shard &shard, int rank, const ShardRecord &record) override;
    void unmap(const Shard &shard, uint64_t index) override;
    void check_stream(void *stream) const override;
    void publish(Shard &shard, void *stream) override;
    void tell_published(Shard &shard) override;
    void read_ahead(Shard &shard) override;
    void start(Operation &operation) override;
    void finish(Operation &operation) override;
    void cancel(Operation &operation, const std::function<void()> &look) override;
    void end_additions(Shard &shard, const std::vector<Operation *> &started) override;
    void before_arrival(const std::vector<Operation *> &started) override;
    void after_arrival() override;
    uint64_t pinned_bytes() const override { return 0; }

private:
    void check_buffer(const Operation &operation) const;
    // What this rank holds for its host of shards that are registered together.
    struct Holdings {
        Shard::Held entries;
        Shard::Held sums;
        uint64_t bytes() const { return entries.bytes + sums.bytes; }
    };
    Holdings plan_held(const std::vector<Shard *> &shards);
    void tell_of_room(const std::vector<Shard *> &shards, const Holdings &held);
    std::vector<Allocation> allocate(const std::vector<Shard *> &shards);
    void start_gather(Operation &operation, Operation::Gather &gather);
    void finish_gather(Operation &operation, Operation::Gather &gather, Job::Wait &wait);
    void begin_gets(Operation &operation, Operation::Gather &gather);
    bool begin_get(Operation &operation, Operation::Gather &gather, uint64_t index);
    void get(Operation &operation, uint64_t index);
    bool get_once_published(Operation &operation, uint64_t index);
    void add(Operation &operation, Job::Wait &wait);
    void await_in_flight(Operation &operation, Job::Wait &wait);
    uint64_t generation() const { return job_.minibatch() + 1; }

    Job &job_;
    ShardDirectory &directory_;
    RemoteMemory &remote_memory_;
    Counters &counters_;
    std::unique_ptr<NodeCache> cache_;
    std::unique_ptr<NodeSums> sums_;
    CheckBuffer check_buffer_;
    std::vector<Shard *> shards_;
    bool warned_of_entries_ = false;  // that there is no memory for them
    bool warned_of_room_ = false;     // that the node cache has too little
};

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// Shards in GPU memory: the host waits for owners to publish, and leaves copies and additions to the caller's streams.
#pragma once

#include <functional>

#include "core/gpu_memory.h"
#include "core/job.h"
#include "core/operation.h"

namespace odc {

class OwnerAddSource;
class RemoteMemory;
class ShardDirectory;
struct Counters;

class GpuOperations final : public Engine {
public:
    // `cuda`: present; it outlives this and what NICs use of its bounce buffers, and is leaked where the GPU may still write
    // to its memory when this is destroyed.
    GpuOperations(Job &job, ShardDirectory &directory, RemoteMemory &remote_memory, std::unique_ptr<Cuda> &cuda,
                  Counters &counters);
    ~GpuOperations() override;

    void attach(const std::vector<Shard *> &shards) override;
    std::string still_enqueued() override;
    void detach(Shard &shard) override;
    std::optional<Shard::Bases> map(const Shard &shard, int rank, const ShardRecord &record) override {
        return memory_.map(shard, rank, record);
    }
    void unmap(const Shard &shard, uint64_t index) override { memory_.unmap(shard, index); }
    void check_stream(void *stream) const override;
    void publish(Shard &shard, void *stream) override;
    void tell_published(Shard &shard) override;
    // A gather reads into the caller's own memory, which only it knows.
    void read_ahead(Shard & /*shard*/) override {}
    void start(Operation &operation) override;
    void finish(Operation &operation) override;
    void cancel(Operation &operation, const std::function<void()> &look) override;
    // Additions to GPU memory go to the owners themselves: this host has no partial sum to send.
    void end_additions(Shard &shard, const std::vector<Operation *> & /*started*/) override {
        shard.finished = generation();
    }
    void before_arrival(const std::vector<Operation *> &started) override;
    void after_arrival() override;
    uint64_t pinned_bytes() const override;

private:
    template <class Body>
    void enqueue_tracked(const Operation &operation, Body body);
    uint64_t begin_tracked(Call call, const Shard &shard, const std::string &description);
    void check_buffer(const Operation &operation);

    void get(Operation &operation, const std::vector<uint64_t> &indexes);
    void get_published(Operation &operation, Operation::Gather &gather);
    void finish_gather(Operation &operation, Operation::Gather &gather);
    void await_staged_gets(Operation &operation, Job::Wait &wait);
    void enqueue_staged_gets(Operation &operation);
    void cancel_staged_gets(Operation &operation, const std::function<void()> &look);

    void finish_addition(Operation &operation, Operation::ScatterAdd &addition);
    void add(Operation &operation, Operation::ScatterAdd &addition, Job::Wait &wait);
    void add_directly(Operation &operation);
    OwnerAddSource *owner_add_to(const Shard &shard, uint64_t index);
    void add_in_pieces(Operation &operation, uint64_t index, Job::Wait &wait);
    void wait_for_staging(Job::Wait &wait, const std::function<bool()> &ready);
    void check_staging();
    void check_owner_add();
    void check_adders();
    void await_gets();

    // gpu_sync.cc
    void drain();
    std::string unfinished_work();
    void note_wait();
    void reduce_shadow(const Shard &shard);
    void convert_exact_sums(const Shard &shard, const GpuSliceState &state);
    void end_exact_sums_of(Shard &shard);

    int exponent_for_sums_of(const Shard &shard) const;
    void leak();
    uint64_t generation() const { return job_.minibatch() + 1; }

    Job &job_;
    ShardDirectory &directory_;
    std::unique_ptr<Cuda> &owned_cuda_;
    Cuda &cuda_;
    Counters &counters_;
    GpuMemory memory_;
    std::vector<Shard *> shards_;
    uint64_t logged_full_ = 0;  // of Cuda::times_full()
};

}  // namespace odc

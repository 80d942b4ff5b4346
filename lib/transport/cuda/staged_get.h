// SPDX-License-Identifier: Apache-2.0
// Gets from other hosts into GPU memory: slices are read piece by piece into slots, from which the caller's stream copies them once
// they have arrived.
#pragma once

#include "memory/control_block.h"
#include "transport/cuda/bounce_pool.h"
#include "transport/transport.h"

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace odc {

// The get of one slice; for one thread at a time.
struct StagedGet {
    int owner;
    Doorbell *doorbell;  // the owner's: a pending piece counts as a waiter, so it is asked whether it is alive
    Endpoint *endpoint;
    RemoteSlice from;     // published
    std::byte *to;        // in GPU memory
    uint64_t generation;  // the current minibatch plus one

    struct Piece {
        size_t slot;
        uint64_t arrival;  // the value of the slot's arrival word then
        uint64_t bytes;
        std::shared_ptr<Request> request;
    };
    uint64_t requested = 0;  // elements
    uint64_t enqueued = 0;   // bytes
    std::deque<Piece> pieces = {};

    bool is_enqueued() const { return requested == from.numel && pieces.empty(); }
};

// Calls for different gets may overlap. The progress thread writes a slot's arrival word when its read has ended, for which the stream
// waits, so that no thread does: it calls nothing of CUDA, which may be blocked until that stream goes on. Only the slots of
// GPUDirect RDMA, in GPU memory, need a thread: it flushes what a network adapter has written before the stream copies.
class StagedGets {
public:
    static constexpr size_t kLeastSlots = 3;

    // `slots` bound the pending reads.
    StagedGets(const CudaDevice &device, std::unique_ptr<BouncePool> slots);

    // Reads pieces of all gets in turn while slots are free.
    void read(std::vector<StagedGet> &gets) { read(gets, 0); }
    // The same, but leaves the last slots to gets that somebody waits for: the pieces of other gets keep their slots until
    // somebody waits for those.
    void read_ahead(std::vector<StagedGet> &gets);
    // Whether the copy of the get's next piece can be enqueued.
    bool is_ready(const StagedGet &get) const;
    // Enqueues the copies of the get's pieces that are ready. A stream waits for a piece until `deadline_ns` (now_ns()) at most;
    // failed_owner() then names its owner. The caller has a CudaDevice::Scope.
    void enqueue(StagedGet &get, cuda::Stream stream, int64_t deadline_ns);
    // Drops the pieces that are not enqueued; they can be read again. None of their requests is pending.
    void release(StagedGet &get);
    const BouncePool &slots() const { return *slots_; }
    // Whether all enqueued copies are done, and nothing is read for them any more.
    bool is_idle();

    // The owner of the oldest piece that a stream waits for; none if there is none.
    std::optional<int> awaited_owner();
    // The owner of a piece that does not reach its stream, as the read was cancelled.
    std::optional<int> failed_owner();

private:
    void read(std::vector<StagedGet> &gets, size_t spare);
    bool read_piece(StagedGet &get, size_t spare);
    template <class Predicate>
    std::optional<int> first_owner(Predicate predicate);

    const CudaDevice &device_;
    std::unique_ptr<BouncePool> slots_;
    PinnedMemory arrival_words_;
    std::vector<uint64_t> arrivals_;  // the last value of each word; changed by whoever has taken the slot
    std::mutex mutex_;
    std::deque<std::shared_ptr<Request>> awaited_;  // by streams, oldest first
};

}  // namespace odc

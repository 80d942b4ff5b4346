// SPDX-License-Identifier: Apache-2.0
// Gets from other hosts into GPU memory: slices are read piece by piece into slots, from which the caller's stream copies them.
#pragma once

#include "transport/cuda/bounce_pool.h"
#include "transport/transport.h"

#include <deque>
#include <memory>
#include <vector>

namespace odc {

// The get of one slice; for one thread at a time.
struct StagedGet {
    int owner;
    Endpoint *endpoint;
    RemoteSlice from;     // published
    std::byte *to;        // in GPU memory
    uint64_t generation;  // the current minibatch plus one

    struct Piece {
        size_t slot;
        uint64_t bytes;
        std::shared_ptr<Request> request;
    };
    uint64_t requested = 0;  // elements
    uint64_t enqueued = 0;   // bytes
    std::deque<Piece> pieces = {};

    bool has_arrived() const { return !pieces.empty() && pieces.front().request->is_complete(); }
    bool is_enqueued() const { return requested == from.numel && pieces.empty(); }
};

// Calls for different gets may overlap.
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
    // Enqueues the copies of pieces that have arrived. The caller has a CudaDevice::Scope.
    void enqueue(StagedGet &get, cuda::Stream stream);
    // Drops the pieces that are not enqueued; they can be read again. None of their requests is pending.
    void release(StagedGet &get);
    const BouncePool &slots() const { return *slots_; }
    // Whether all enqueued copies are done.
    bool is_idle() { return slots_->is_idle(); }

private:
    void read(std::vector<StagedGet> &gets, size_t spare);
    bool read_piece(StagedGet &get, size_t spare);

    const CudaDevice &device_;
    std::unique_ptr<BouncePool> slots_;
};

}  // namespace odc

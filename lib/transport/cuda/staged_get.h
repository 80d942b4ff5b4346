// SPDX-License-Identifier: Apache-2.0
// Slices of other hosts on their way into GPU memory: read piece by piece into slots, from where the caller's stream copies
// them.
#pragma once

#include "transport/cuda/bounce_pool.h"
#include "transport/transport.h"

#include <deque>
#include <memory>
#include <vector>

namespace odc {

// A slice on its way, by one thread at a time.
struct StagedGet {
    int owner;
    Endpoint *path;
    RemoteSlice from;  // published
    std::byte *to;     // in GPU memory
    uint64_t epoch;    // the running minibatch plus one

    struct Piece {
        size_t slot;
        uint64_t bytes;
        std::shared_ptr<Request> request;
    };
    uint64_t asked = 0;     // elements
    uint64_t enqueued = 0;  // bytes
    std::deque<Piece> pieces = {};

    bool has_come() const { return !pieces.empty() && pieces.front().request->done(); }
    bool is_enqueued() const { return asked == from.numel && pieces.empty(); }
};

// Calls for several fetches may overlap.
class StagedGets {
public:
    static constexpr size_t kLeastSlots = 3;

    // `slots`: they bound what is on its way.
    StagedGets(const CudaDevice &device, std::unique_ptr<BouncePool> slots);

    // Asks for what there is room for, from all of them in turn.
    void ask(std::vector<StagedGet> &staged_gets) { ask(staged_gets, 0); }
    // The same, but leaves the last slots to those that are waited for: what has come for others stays where it is until
    // they are, too.
    void ask_ahead(std::vector<StagedGet> &staged_gets);
    // Enqueues the copies of what has come; inside a CudaDevice::Scope.
    void enqueue(StagedGet &fetch, cuda::Stream stream);
    // What has not been enqueued is to be asked for again, if at all. All its requests are settled.
    void drop(StagedGet &fetch);
    const BouncePool &slots() const { return *slots_; }
    // All copies that were enqueued are done; what is yet to come is its fetch's affair.
    bool are_idle() { return slots_->are_idle(); }

private:
    void ask(std::vector<StagedGet> &staged_gets, size_t spare);
    bool ask_for_one(StagedGet &fetch, size_t spare);

    const CudaDevice &device_;
    std::unique_ptr<BouncePool> slots_;
};

}  // namespace odc

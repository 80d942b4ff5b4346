// SPDX-License-Identifier: Apache-2.0
// The sender's side of additions to other hosts (accumulate_target.h is the owner's), a rendezvous protocol: an AddMessage
// tells the owner where to read a gradient, or a host's sum of several, an AppliedMessage tells the sender that it is added. A
// gradient is announced as a whole or, if registering memory is expensive and the gradient is not registered, in pieces that are
// copied to bounce buffers.
#pragma once

#include "transport/fabric/provider/bounce_ring.h"
#include "transport/fabric/provider/registered_memory.h"
#include "transport/fabric/remote_rank.h"
#include "transport/transport.h"

#include <atomic>
#include <deque>
#include <memory>
#include <unordered_map>

namespace odc {

class AccumulateSource {
public:
    AccumulateSource(size_t staging_bytes, const RegisteredMemory &registered);
    ~AccumulateSource();

    // Allocates the endpoint's bounce buffers; throws if the provider refuses to register them.
    void prepare(FabricEndpoint &endpoint) { staging_.at(endpoint); }
    void start(RemoteRank &owner, const RemoteSlice &to, const std::byte *from, uint64_t generation,
               std::shared_ptr<Request> request);
    // Announces pieces while bounce buffers are free; true if it announced any.
    bool pump();
    // Returns the request that this message completes, or NULL.
    std::shared_ptr<Request> on_applied(RemoteRank &owner, const AppliedMessage &message);
    void stop();
    uint64_t times_full() const { return staging_.times_full(); }
    // Bytes of gradients that owners have applied. Thread-safe.
    uint64_t applied_bytes() const { return applied_bytes_.load(std::memory_order_relaxed); }

private:
    struct Addition {
        RemoteRank &owner;
        RemoteSlice to;
        const std::byte *from;
        uint64_t generation;
        uint64_t announced;  // elements
        uint64_t applied;
        std::shared_ptr<Request> request;
    };
    // Where the owner reads a piece, and what is held until it has.
    struct Source {
        uint64_t address;
        uint64_t key;
        MemoryRegion region = {};
        std::byte *slot = nullptr;
    };
    struct Piece {
        std::shared_ptr<Addition> addition;
        uint64_t left;  // elements that are not applied yet
        Source source;
    };
    void announce(std::shared_ptr<Addition> addition, uint64_t count, Source source);

    const RegisteredMemory &registered_;
    BounceRings staging_;
    std::deque<std::shared_ptr<Addition>> waiting_;  // for bounce buffers
    std::unordered_map<uint64_t, Piece> pieces_;     // by operation
    uint64_t last_operation_ = 0;
    std::atomic<uint64_t> applied_bytes_{0};
};

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// Gets of slices of other hosts: each is read once its owner has published it, straight into the caller's buffer or, if the
// provider needs registered memory and the buffer is not, through bounce buffers.
#pragma once

#include "memory/control_block.h"
#include "transport/fabric/provider/bounce_ring.h"
#include "transport/fabric/provider/registered_memory.h"
#include "transport/fabric/rma_read.h"
#include "transport/transport.h"

#include <atomic>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

namespace odc {

class GetQueue {
public:
    using OnEnd = std::function<void(const std::shared_ptr<Request> &)>;

    // `on_end` is called with each request that is complete or cancelled. `mine`: its `read_bytes` counts what has come, its `wants`
    // tells that somebody may wait by now for a get that was ahead.
    GetQueue(size_t staging_bytes, const RegisteredMemory &registered, ControlBlock &mine, OnEnd on_end);
    ~GetQueue();

    // Allocates the endpoint's bounce buffers; throws if the provider refuses to register them.
    void prepare(FabricEndpoint &endpoint) { staging_.at(endpoint); }
    // Reads the slice once its published word is at least `generation`.
    void start(RemoteRank &owner, const RemoteSlice &from, std::byte *to, uint64_t generation, const ReadAhead &ahead,
               std::shared_ptr<Request> request);
    // The owner has published: starts the gets that waited for it.
    void on_published(RemoteRank &owner);
    // Requests no further chunks; the request ends once those in flight have arrived. Does nothing for the request of an add.
    void cancel(const std::shared_ptr<Request> &request);
    bool pump();
    // Cancels the gets that streams wait for whose deadline is over, or whose owner is gone.
    void cancel_overdue(int64_t now_ns);
    bool must_retry() const { return reads_.must_retry(); }
    uint64_t times_full() const { return staging_.times_full(); }
    bool in_flight() const { return reads_.in_flight(); }
    // Starts nothing more. Gets that have not started stay pending.
    void stop();

private:
    class Get;
    struct Unpublished {
        std::shared_ptr<Get> get;
        const std::atomic<uint64_t> *published;
        uint64_t generation;
    };

    const RegisteredMemory &registered_;
    ControlBlock &mine_;
    uint64_t seen_wants_ = 0;
    OnEnd on_end_;
    BounceRings staging_;
    RmaReads reads_;
    std::unordered_map<const RemoteRank *, std::vector<Unpublished>> unpublished_;  // by owner
    std::unordered_map<std::shared_ptr<Request>, std::weak_ptr<Get>> pending_;
    int64_t next_check_ns_ = 0;
};

}  // namespace odc

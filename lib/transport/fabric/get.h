// SPDX-License-Identifier: Apache-2.0
// Slices of owners on other hosts, on their way into callers' buffers: each is read as soon as its owner has published
// it, straight into place, or through bounded staging where memory would have to be registered and is not lent.
#pragma once

#include "transport/fabric/bounce_ring.h"
#include "transport/fabric/registered_memory.h"
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
    using Settled = std::function<void(const std::shared_ptr<Request> &)>;

    // `settled` hears of each request that is done or given up.
    GetQueue(size_t staging_bytes, const RegisteredMemory &registered, Settled settled);
    ~GetQueue();

    // Makes what staging the endpoint needs; throws where it is refused.
    void prepare(FabricEndpoint &endpoint) { staging_.at(endpoint); }
    // Once the owner has published minibatch `wanted` - 1.
    void start(RemoteRank &owner, const RemoteSlice &from, std::byte *to, uint64_t wanted,
               std::shared_ptr<Request> request);
    // Starts what waited for this.
    void published(RemoteRank &owner);
    // Asks for no more of it; it is settled when what is on its way has landed. An addition is left alone.
    void cancel(const std::shared_ptr<Request> &request);
    bool pump() { return reads_.pump(); }
    bool refused() const { return reads_.refused(); }
    bool in_flight() const { return reads_.in_flight(); }
    // Starts nothing more. What is not settled stays so.
    void stop();

private:
    class Get;
    struct Expected {
        std::shared_ptr<Get> get;
        const std::atomic<uint64_t> *published;
        uint64_t wanted;
    };

    const RegisteredMemory &registered_;
    Settled settled_;
    BounceRings staging_;
    RmaReads reads_;
    std::vector<Expected> expected_;  // slices that are not published yet
    std::unordered_map<std::shared_ptr<Request>, std::weak_ptr<Get>> unsettled_;
};

}  // namespace odc

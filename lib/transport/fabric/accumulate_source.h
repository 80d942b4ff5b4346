// SPDX-License-Identifier: Apache-2.0
// The sender's side of additions to other hosts (accumulate_target.h is the owner's). A gradient is offered as a whole, or, where memory must be registered at a price and is not lent,
// piece by piece from bounded staging.
#pragma once

#include "transport/fabric/bounce_ring.h"
#include "transport/fabric/registered_memory.h"
#include "transport/fabric/remote_rank.h"
#include "transport/transport.h"

#include <deque>
#include <memory>
#include <unordered_map>

namespace odc {

class AccumulateSource {
public:
    AccumulateSource(size_t staging_bytes, const RegisteredMemory &registered, Tell tell);
    ~AccumulateSource();

    // Makes what staging the endpoint needs; throws where it is refused.
    void prepare(FabricEndpoint &endpoint) { staging_.at(endpoint); }
    void start(RemoteRank &owner, const RemoteSlice &to, const std::byte *from, uint64_t epoch,
               std::shared_ptr<Request> request);
    bool pump();
    // The request that is complete with this, or NULL.
    std::shared_ptr<Request> applied(RemoteRank &owner, const AppliedMessage &message);
    void stop();

private:
    struct Sum {
        RemoteRank &owner;
        RemoteSlice to;
        const std::byte *from;
        uint64_t epoch;
        uint64_t offered;  // elements
        uint64_t applied;
        std::shared_ptr<Request> request;
    };
    // Where a piece can be read, and what that takes until it has been.
    struct Source {
        uint64_t address;
        uint64_t key;
        Exposed exposed = {};
        std::byte *slot = nullptr;
    };
    struct Piece {
        std::shared_ptr<Sum> sum;
        uint64_t left;  // elements
        Source source;
    };
    void offer(std::shared_ptr<Sum> sum, uint64_t count, Source source);

    const RegisteredMemory &registered_;
    BounceRings staging_;
    Tell tell_;
    std::deque<std::shared_ptr<Sum>> waiting_;  // for staging
    std::unordered_map<uint64_t, Piece> pieces_;
    uint64_t last_ = 0;
};

}  // namespace odc

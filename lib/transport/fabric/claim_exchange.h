// SPDX-License-Identifier: Apache-2.0
// Claims of items that a rank 0 of another host hands out; and, on rank 0, the answers to such claims.
#pragma once

#include "memory/claim_counter.h"
#include "transport/fabric/remote_rank.h"
#include "transport/transport.h"

#include <cstdint>
#include <memory>
#include <unordered_map>

namespace odc {

class ClaimRequest final : public Request {
public:
    explicit ClaimRequest(uint64_t count) : Request(0), asked(count) {}
    void cancel() override {}  // an item may be on its way

    const uint64_t asked;  // the count
    ClaimedItem item{};    // valid once it is complete
};

class ClaimExchange {
public:
    explicit ClaimExchange(ControlBlock &mine) : mine_(mine) {}

    void start(RemoteRank &rank_0, uint64_t minibatch, std::shared_ptr<ClaimRequest> request);
    // On rank 0.
    void on_claim(RemoteRank &from, const ClaimMessage &message);
    // Returns the request that this message completes.
    std::shared_ptr<Request> on_claimed(RemoteRank &from, const ClaimedMessage &message);

private:
    ControlBlock &mine_;
    std::unordered_map<uint64_t, std::shared_ptr<ClaimRequest>> claims_;  // by number
    uint64_t last_claim_ = 0;
};

}  // namespace odc

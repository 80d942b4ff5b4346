// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/claim_exchange.h"

#include "base/error.h"
#include "transport/fabric/reliable_stream.h"

namespace odc {

void ClaimExchange::start(RemoteRank &rank_0, uint64_t minibatch, std::shared_ptr<ClaimRequest> request) {
    const ClaimMessage message{++last_claim_, minibatch, request->asked};
    claims_.emplace(message.claim, std::move(request));
    rank_0.stream->send(rank_0, encode(message));
}

void ClaimExchange::on_claim(RemoteRank &from, const ClaimMessage &message) {
    if (mine_.rank != 0 || message.count > kMostItems) {
        fail(ODC_ERROR_INTERNAL, "rank {} claims one of {} items from rank {}", from.rank, message.count, mine_.rank);
    }
    const ClaimedItem item = claim_item(mine_.claims, message.minibatch, message.count);
    from.stream->send(from, encode(ClaimedMessage{message.claim, item.index, item.count}));
}

std::shared_ptr<Request> ClaimExchange::on_claimed(RemoteRank &from, const ClaimedMessage &message) {
    const auto known = claims_.find(message.claim);
    if (from.rank != 0 || known == claims_.end()) {
        fail(ODC_ERROR_INTERNAL, "rank {} answers a claim that this rank has not made", from.rank);
    }
    std::shared_ptr<ClaimRequest> request = std::move(known->second);
    claims_.erase(known);
    request->item = {message.index, message.count};
    return request;
}

}  // namespace odc

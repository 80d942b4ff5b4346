// SPDX-License-Identifier: Apache-2.0
// A rank of another host, as the progress thread knows it.
#pragma once

#include "base/error.h"
#include "transport/fabric/listener_probe.h"
#include "transport/fabric/provider/endpoint.h"
#include "transport/fabric/rank_replica.h"

#include <optional>

namespace odc {

class ReliableStream;

struct RemoteRank {
    int rank;
    int host;  // its index, the same on all ranks
    FabricEndpoint *endpoint;
    fi_addr_t address;
    std::vector<std::byte> name;  // its endpoint's address
    RankReplica replica;
    ReliableStream *stream;  // of this rank, for control messages to all
    // When the first unanswered ping was queued, then when it was sent; 0: there is none.
    int64_t silent_since_ns = 0;
    bool warned = false;                      // of its silence
    bool ping_sent = false;                   // that ping has been sent
    std::optional<ListenerProbe> probe = {};  // while it is silent
    // It is neither sent to nor read from any more.
    bool gone = false;
    bool closing = false;     // has sent its last message: gone once the acknowledgement is sent
    uint64_t last_pong = 0;   // the number of our last ping that it answered
    bool awaits_ack = false;  // has not acknowledged our last message

    // After the endpoint failed to post an operation: true if the provider only had no room (FI_EAGAIN).
    bool may_retry() {
        const std::string failure = endpoint->take_failure();
        if (!failure.empty()) {
            mark_lost(formatted("it cannot be reached ({})", failure));
        }
        return failure.empty();
    }
    void mark_lost(const std::string &why) {
        gone = true;
        replica.mark_lost(why);
    }
};

}  // namespace odc

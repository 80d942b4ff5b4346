// SPDX-License-Identifier: Apache-2.0
// A rank of another host, as the progress thread knows it.
#pragma once

#include "base/error.h"
#include "transport/fabric/endpoint.h"
#include "transport/fabric/listener_probe.h"
#include "transport/fabric/rank_replica.h"

#include <functional>
#include <optional>

namespace odc {

struct RemoteRank {
    int rank;
    int host;  // index, the same on all ranks
    FabricEndpoint *endpoint;
    fi_addr_t address;
    std::vector<std::byte> name;  // of its endpoint
    RankReplica replica;
    // When the first question that it has not answered was put, then when it left; 0: none.
    int64_t silent_since_ns = 0;
    bool has_question = false;                // that question has left
    std::optional<ListenerProbe> probe = {};  // while it is silent
    // Nothing is sent to it any more, nor read from it.
    bool gone = false;
    bool closing = false;     // said goodbye: gone once it has been answered
    uint64_t answered = 0;    // the last of our questions
    bool owes_heard = false;  // has our last words to answer

    // After the endpoint has refused something for it: true if there was no room only.
    bool may_retry() {
        const std::string failure = endpoint->take_failure();
        if (!failure.empty()) {
            lose(say("it cannot be reached (", failure, ")"));
        }
        return failure.empty();
    }
    void lose(const std::string &why) {
        gone = true;
        replica.lose(why);
    }
};

// Says something to a rank.
using Tell = std::function<void(RemoteRank &, const ControlMessage &)>;

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
#include "route.h"

#include "status.h"

namespace odc {

Route choose_route(int my_rank, const std::string &my_identity, int peer, const std::string &peer_host,
                   const std::string &peer_identity) {
    std::string reasons;
    for (const Transport *transport : kTransports) {
        std::string why_not = transport->why_not();
        if (why_not.empty()) {
            why_not = transport->why_not_host(my_identity, peer_identity);
        }
        if (why_not.empty()) {
            return {transport->reach(my_rank), say(transport->name, ": ", peer == my_rank ? "this rank" : "same host",
                                                   reasons.empty() ? "" : "; not ", reasons)};
        }
        reasons += say(reasons.empty() ? "" : "; ", transport->name, ": ", why_not);
    }
    fail(ODC_ERROR_UNSUPPORTED, "no transport of this build reaches rank ", peer, " on host ", peer_host, " (", reasons,
         "); run all ranks on one host");
}

}  // namespace odc

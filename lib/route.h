// SPDX-License-Identifier: Apache-2.0
// Which transport is used for which peer, and why.
#pragma once

#include "transport/shm.h"

#include <string>
#include <vector>

namespace odc {

// Most wanted first; the first that reaches a peer is used.
inline constexpr const Transport *kTransports[] = {&kShm};

struct Route {
    std::unique_ptr<Path> path;
    std::string why;  // "shm: same host"
};

// Throws ODC_ERROR_UNSUPPORTED, with every transport's reason, when none reaches the peer.
Route choose_route(int my_rank, const std::string &my_identity, int peer, const std::string &peer_host,
                   const std::string &peer_identity);

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// How ranks find each other: from the configuration and the environment to the peers' shared memory.
#pragma once

#include "arena.h"
#include "meeting.h"
#include "route.h"
#include "transport/fabric.h"

#include <string>
#include <vector>

namespace odc {

// What odc_init was asked for, after the environment has filled in the rest.
struct Terms {
    int rank;
    int size;
    int64_t timeout_ms;
    odc_interrupted_fn interrupted;
    void *interrupted_arg;
};

struct Peer {
    std::string host;
    int pid;
    std::shared_ptr<Arena> arena;  // of another host's rank: with its image
    uint64_t block;                // offset of its block there
    Fd life;                       // pidfd; of this host's ranks only
    Route route;
};

struct Membership {
    Terms terms;
    std::vector<Peer> peers;         // by rank, this one included
    std::unique_ptr<Fabric> fabric;  // NULL: all ranks are on this host
};

Membership join(const odc_config &config);

}  // namespace odc

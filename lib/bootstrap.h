// SPDX-License-Identifier: Apache-2.0
// How ranks find each other: from the configuration and the environment to the peers' shared memory.
#pragma once

#include "arena.h"
#include "meeting.h"
#include "route.h"

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
    std::unique_ptr<Arena> arena;
    Fd life;  // pidfd
    Route route;
};

struct Membership {
    Terms terms;
    std::vector<Peer> peers;  // by rank, this one included
};

Membership join(const odc_config &config);

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// What a rank that has joined knows: what odc_init was asked for, and all ranks with the ways to their memory.
#pragma once

#include "base/fd.h"
#include "base/log.h"
#include "base/program.h"
#include "memory/control_block.h"
#include "memory/shared_arena.h"
#include "routing/route.h"
#include "transport/cuda/cuda.h"
#include "transport/fabric/fabric.h"

#include <odc/odc.h>

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
    Log *log;  // outlives the job
};

struct Peer {
    std::string host;              // as errors show it
    std::string identity;          // of the host: equal for ranks that share memory
    size_t host_index;             // in `hosts`
    int pid;                       // on its host
    std::shared_ptr<Arena> arena;  // of another host's rank: that of the images (fabric.h)
    uint64_t block;                // offset of its block there
    Fd life;                       // its pidfd; invalid for another host's rank
    Fd program;                    // program.h; likewise
    Route route;                   // to its host memory
    Route gpu_route;               // from this rank's GPU to its

    ControlBlock &control_block() const { return *reinterpret_cast<ControlBlock *>(arena->record(block)); }
};

struct Membership {
    Terms terms;
    std::vector<Peer> peers;              // by rank, this one included
    std::vector<std::vector<int>> hosts;  // the ranks of each, ascending; in the order of their lowest ranks
    std::unique_ptr<Program> program;     // this process's, for as long as it is a member
    std::unique_ptr<Cuda> cuda;           // NULL: this rank has no GPU; outlives what the network uses of its slots
    std::unique_ptr<Fabric> fabric;       // NULL: all ranks are on this host

    const Peer &own() const { return peers[static_cast<size_t>(terms.rank)]; }
};

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// The job's configuration, and what a rank that has joined knows of one rank.
#pragma once

#include "base/fd.h"
#include "base/log.h"
#include "memory/control_block.h"
#include "memory/shared_arena.h"
#include "routing/route.h"

#include <odc/odc.h>

#include <memory>
#include <string>

namespace odc {

// What odc_init was asked for, after the environment has filled in the rest.
struct JobConfig {
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
    std::shared_ptr<Arena> arena;  // of another host's rank: that of the replicas (fabric.h)
    uint64_t block;                // offset of its block there
    Fd pidfd;                      // invalid for another host's rank
    Fd program;                    // program.h; likewise
    Route route;                   // to its host memory
    Route gpu_route;               // from this rank's GPU to its

    ControlBlock &control_block() const { return *reinterpret_cast<ControlBlock *>(arena->record(block)); }
};

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// All ranks of a job, and by what this one reaches their memory.
#pragma once

#include "bootstrap/node_cache_share.h"
#include "bootstrap/peer.h"

#include <memory>
#include <vector>

namespace odc {

class Cuda;
class Fabric;
class Program;

struct Membership {
    explicit Membership(const JobConfig &config);
    Membership(Membership &&) noexcept;
    ~Membership();

    JobConfig config;
    std::vector<Peer> peers;              // by rank, this one included
    std::vector<std::vector<int>> hosts;  // the ranks of each, ascending; in the order of their lowest ranks
    NodeCacheShare node_cache;            // of this host
    std::unique_ptr<Program> program;     // this process's, for as long as it is a member
    std::unique_ptr<Cuda> cuda;           // NULL: this rank has no GPU; outlives what the network uses of its slots
    std::unique_ptr<Fabric> fabric;       // NULL: all ranks are on this host

    const Peer &own() const { return peers[static_cast<size_t>(config.rank)]; }
};

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// What is known of two ranks when the route between them is chosen.
#pragma once

#include "routing/nic_address.h"
#include "routing/route_options.h"
#include "transport/cuda/peer_access.h"

#include <cstdint>
#include <string>
#include <vector>

namespace odc {

inline constexpr const char *kNoGpuDirect = "ODC_GPU_DIRECT is not 1";

// What a rank's peers know of it.
struct RankDescriptor {
    int rank = 0;
    std::string host;      // its name, for messages
    std::string identity;  // equal: can share memory
    int index = 0;         // among the ranks of its identity
    uint32_t transports = kAllTransports;
    std::string gpu;                               // its name; empty: it has none
    std::string why_no_fabric;                     // empty: it can use libfabric
    std::string why_no_gpu_direct = kNoGpuDirect;  // empty: its NICs reach the memory of its GPU
    std::vector<NicAddress> nics;  // well-formed, best first; with one provider each before routes are chosen
};

// Indexes among the NICs of this rank and of another one.
struct NicPair {
    int mine;
    int theirs;
};

struct RankPair {
    const RankDescriptor &mine;
    const RankDescriptor &theirs;
    std::vector<NicPair> unreachable = {};  // tried without an answer
    PeerAccess peer_access = {};            // of their GPUs, if they are on one host

    bool on_one_host() const { return mine.identity == theirs.identity; }
    bool is_one_rank() const { return mine.rank == theirs.rank; }
};

}  // namespace odc

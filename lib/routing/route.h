// SPDX-License-Identifier: Apache-2.0
// Which transport is used for which peer, and why.
#pragma once

#include "routing/rank_descriptor.h"
#include "transport/transport.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace odc {

struct WhyNot {
    std::string_view transport;  // its name in the table
    std::string why;
};

// The two ranks of a pair choose alike: transport, NICs and reasons are those of the other's choice with the sides changed. Only
// the read mode is each rank's own.
struct RouteChoice {
    std::string_view transport;  // its name in the table (transport_table.h); "" when none reaches
    int my_nic = -1;             // indexes among the descriptors' NICs; -1: it takes none
    int their_nic = -1;
    ReadMode read_mode = ReadMode::Direct;  // of what this rank reads there
    std::string why;
    std::vector<WhyNot> why_not;  // every transport for this kind of memory that is not taken
};

// Goes through the table of transports: the first that reaches that memory is taken. A pure function.
RouteChoice choose_route(const RankPair &pair, MemoryKind memory);

// The route to a peer's memory of one kind, and the choice that it comes from.
struct Route {
    std::unique_ptr<Endpoint> endpoint;  // of host memory
    RouteChoice choice;
    // Names from the choice, if it takes NICs.
    std::string provider;
    std::string nic;
    std::string peer_nic;
    std::string why_not;  // of all transports not taken

    // For a route to GPU memory: whether that memory is mapped here.
    bool is_direct() const { return !choice.transport.empty() && choice.read_mode == ReadMode::Direct; }
};

// "direct", "staged", or "none": no transport reaches.
const char *access_of(const RouteChoice &choice);

// The reasons of a choice in one line: "shm: rank 1 is on another host (b); fabric: ...".
std::string why_not_text(const RouteChoice &choice);
// Why the pair cannot be in one job, for an error of odc_init: no transport reaches, or ODC_REQUIRE is not met by the route
// of host memory (nvlink_requirement.h: of GPUs). Empty: it can. `refused`: this rank's NICs that are not used.
std::string unmet_requirement(const RouteChoice &choice, const RankDescriptor &mine, const RankDescriptor &theirs,
                              const RouteOptions &options, const std::vector<Refusal> &refused);

}  // namespace odc

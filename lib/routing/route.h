// SPDX-License-Identifier: Apache-2.0
// Which transport is used for which peer, and why.
#pragma once

#include "routing/nic_address.h"
#include "routing/route_options.h"
#include "transport/cuda/peer_access.h"
#include "transport/fabric/provider_query.h"
#include "transport/shm/shm.h"
#include "transport/transport.h"

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace odc {

// Empty: libfabric has a provider here that this library can use (asking takes 0.3 s). Else why not.
std::string why_no_provider();

struct Transport {
    const char *name;
    // Empty: works on this machine. Else why not, in words.
    std::string (*why_not)();
};
// Most wanted first.
inline constexpr std::array<Transport, 3> kTransports = {{{kTransportNames[kCuda], why_not_cuda},
                                                          {kTransportNames[kShm], why_not_shm},
                                                          {kTransportNames[kFabric], why_no_provider}}};

// What libfabric has for this machine's NICs (0.3 s); where it cannot be used, why, for every provider.
std::vector<ProviderInfo> query_libfabric();

inline constexpr const char *kNoGpuDirect = "ODC_GPU_DIRECT is not 1";

// What a rank's peers know of it when they choose routes.
struct RankDescriptor {
    int rank = 0;
    std::string host;      // its name, for words
    std::string identity;  // equal: can share memory
    int index = 0;         // among the ranks of its identity
    uint32_t transports = kAllTransports;
    std::string gpu;                               // its name; empty: it has none
    std::string why_no_fabric;                     // empty: it can use libfabric
    std::string why_no_gpu_direct = kNoGpuDirect;  // empty: its NICs reach the memory of its GPU
    std::vector<NicAddress> ports;                 // well-formed, best first; settled before routes are chosen
};

// Leaves each port one provider: of those for sockets the most wanted that all ranks with such ports have, as their
// libfabrics may be of different versions. A port that lacks it keeps its own, and the words say so, for errors.
std::string settle(const std::vector<RankDescriptor *> &ranks);

struct WhyNot {
    std::string_view transport;  // of kTransportNames
    std::string why;
};

// What both ranks say of their pair: transports, ports and reasons are those of the other's choice with the sides
// changed. How reads land is each rank's own affair.
struct RouteChoice {
    std::string_view transport;  // of kTransportNames; "" when none reaches
    int my_port = -1;            // of fabric: places in the descriptors' ports
    int their_port = -1;
    ReadMode read_mode = ReadMode::Direct;  // of what this rank reads there
    std::string why;
    std::vector<WhyNot> why_not;  // every transport for this kind of memory that is not taken
};

// Places in the ports of this rank and of another one.
struct NicPair {
    int mine;
    int theirs;
};

// For host memory; a pure function. Inside a host shm; between hosts the pair of ports with the most wanted provider that
// both have, outside tunnels, in one subnet, with the higher speed (of the slower end), nearest to the ranks' memory; the
// ranks of a host are spread over equals. `silent`: pairs that were tried, in vain.
RouteChoice choose_route(const RankDescriptor &mine, const RankDescriptor &theirs,
                         const std::vector<NicPair> &silent = {});

// The path to a peer and the choice that it comes from.
struct Route {
    std::unique_ptr<Endpoint> path;
    RouteChoice choice;
    // The choice's, of fabric only.
    std::string provider;
    std::string nic;
    std::string peer_nic;
    std::string why_not;  // of all transports not taken

    // Of GPU memory: it is mapped here.
    bool is_direct() const { return choice.transport == kTransportNames[kCuda]; }
};

// To a rank's GPU memory from this one's: of this host, by what `peer access` allows; of another one, where host memory goes,
// by GPUDirect RDMA at each end that has it.
RouteChoice choose_gpu_route(const RankDescriptor &mine, const RankDescriptor &theirs, const PeerAccess &peer_access);
RouteChoice choose_gpu_route(const RankDescriptor &mine, const RankDescriptor &theirs,
                             const RouteChoice &of_host_memory);
// "direct", "staged", or "none": no transport reaches.
const char *access_of(const RouteChoice &choice);

// The reasons of a choice in one line: "shm: rank 1 is on another host (b); fabric: ...".
std::string why_not_text(const RouteChoice &choice);
// Why the pair cannot be in one job, for an error of odc_init: no transport reaches, or ODC_REQUIRE is not met by the route
// of host memory (nvlink_requirement.h: of GPUs). Empty: it can. `refused`: this rank's NICs that are not used.
std::string unmet_requirement(const RouteChoice &choice, const RankDescriptor &mine, const RankDescriptor &theirs,
                              const RouteOptions &options, const std::vector<Refusal> &refused);

}  // namespace odc

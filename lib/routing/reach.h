// SPDX-License-Identifier: Apache-2.0
// Whether a pair of ranks reaches each other's memory by a transport: what the rows of the table of transports point to.
// Pure functions. Empty: it does, and `choice` says how and why. Else why not. They are asked in the order of the table,
// with what the choice has become so far, and only of pairs on one host, or on two, as the row says.
#pragma once

#include <string>

namespace odc {

struct RankPair;
struct RouteChoice;

using Reach = std::string (*)(const RankPair &pair, RouteChoice &choice);

// Host memory of one host, which each maps.
std::string reach_mapped_memory(const RankPair &pair, RouteChoice &choice);
// GPUs of one host, by what their peer access allows, or by way of host memory that both map.
std::string reach_peer_gpu(const RankPair &pair, RouteChoice &choice);
std::string reach_gpu_through_host_memory(const RankPair &pair, RouteChoice &choice);
// Other hosts: the pair of NICs with the most wanted provider that both have, outside tunnels, in one subnet, with the higher
// speed (of the slower end), nearest to the ranks' memory; the ranks of a host are spread over equals. GPU memory goes the
// same way, by GPUDirect RDMA at each end that has it.
std::string reach_by_nics(const RankPair &pair, RouteChoice &choice);
std::string reach_gpu_by_nics(const RankPair &pair, RouteChoice &choice);

// Not of a pair: empty, if libfabric has a provider here that this library can use (asking takes 0.3 s). Else why not.
std::string why_no_provider();

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// What the rows of the table of transports point to: whether a rank reaches another's memory by a transport. Pure functions. The
// result is empty if it does, and `choice` then says how and why; else the result says why not. They are asked in the order of the
// table, with the choice as it is by then, and only about pairs on one host, or on two, as the row says.
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

// Not about a pair: why libfabric has no provider here that this library can use; empty: it has one. Asking takes 0.3 s.
std::string why_no_provider();

}  // namespace odc

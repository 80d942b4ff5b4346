// SPDX-License-Identifier: Apache-2.0
// The table of transports, most wanted first, which is the choice: choose_route (route.h) goes through it row by row.
#pragma once

#include "routing/reach.h"
#include "transport/cuda/peer_access.h"
#include "transport/fabric/fabric.h"
#include "transport/shm/shm.h"
#include "transport/transport.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace odc {

// Which pairs of ranks a transport is for.
enum class Scope { OneHost, TwoHosts };

struct TransportRow {
    const char *name;  // in ODC_TRANSPORTS
    Scope scope;
    // Returns why it does not work on this machine; empty: it does.
    std::string (*why_not_here)();
    // Whether the transport reaches a peer's memory of that kind; NULL: it does not move such memory.
    Reach host_memory;
    Reach gpu_memory;
    // Makes the endpoint to a peer's host memory; NULL: it does not move such memory.
    std::unique_ptr<Endpoint> (*connect)(const EndpointParams &params);
};

// Transports inside a host come first. A set of transports (ODC_TRANSPORTS) is a mask of bits in this order, which ranks exchange.
inline constexpr auto kTransports = std::to_array<TransportRow>({
    {"cuda", Scope::OneHost, why_not_cuda, nullptr, reach_peer_gpu, nullptr},
    {"shm", Scope::OneHost, why_not_shm, reach_mapped_memory, reach_gpu_through_host_memory, connect_shm},
    {"fabric", Scope::TwoHosts, why_no_provider, reach_by_nics, reach_gpu_by_nics, connect_fabric},
});
static_assert(kTransports.size() <= 32);

// The row of a transport that is in the table.
constexpr const TransportRow &transport_row(std::string_view name) {
    return *std::find_if(kTransports.begin(), kTransports.end(),
                         [&](const TransportRow &row) { return row.name == name; });
}

constexpr uint32_t transport_bit(const TransportRow &row) { return 1U << (&row - kTransports.data()); }

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// What the settings ODC_TRANSPORTS, ODC_INTERFACE, ODC_PROVIDER and ODC_REQUIRE ask of routes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace odc {

inline constexpr uint32_t kAllTransports = UINT32_MAX;

// What a route may be required to be; a set of them is a mask of bits in the order of kRequirements.
enum class Requirement { Shm, NvLink, Rdma };

struct RequirementRow {
    const char *name;
    const char *scope;   // which routes it is about
    const char *demand;  // what they must be
};
inline constexpr std::array<RequirementRow, 3> kRequirements = {{
    {"shm", "inside a host", "shared memory"},
    {"nvlink", "inside a host", "NVLink between GPUs"},
    {"rdma", "between hosts", "an RDMA provider of libfabric"},
}};

std::string demand_of(Requirement one);  // "ODC_REQUIRE asks for shm (inside a host: shared memory)"

struct RouteOptions {
    uint32_t transports = kAllTransports;  // a mask of bits (transport_table.h)
    std::vector<std::string> interfaces;   // empty: all
    std::vector<std::string> providers;    // names of kProviders (provider_table.h); empty: all
    uint32_t requirements = 0;

    bool requires_that(Requirement one) const { return (requirements >> static_cast<unsigned>(one) & 1) != 0; }
};

// The environment's. Throws ODC_ERROR_ARGUMENT for a name that is not valid, with those that are; names of interfaces are
// checked against the machine's by check_interfaces (nic_address.h).
RouteOptions read_route_options();

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// The NICs by which other hosts reach a rank, with the libfabric providers that can serve each, as its peers see them. Pure
// functions of a machine, of where the rank's memory is, and of what libfabric has there.
#pragma once

#include "routing/provider_table.h"
#include "routing/route_options.h"
#include "topology/machine.h"

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace odc {

// As it travels between ranks. A set of providers is a mask of bits in the order of kProviders.
struct NicAddress {
    char name[36];        // as the kernel calls it: "eth0", "mlx5_0"; ends with a zero byte
    uint8_t address[16];  // of the family
    uint32_t speed;       // Mbit/s; 0: unknown
    uint16_t providers;   // any of these can serve it; once negotiated (providers.h), one
    uint16_t staged;      // those of them by which reads into it are staged
    uint8_t family;       // 4, 6; 0: none, or not known
    uint8_t prefix;       // bits
    uint8_t kind;         // NicKind
    uint8_t distance;     // Nearness of the NIC to the rank's memory
};
static_assert(sizeof(NicAddress) == 64);

inline constexpr size_t kMaxNics = 20;  // a host with sixteen adapters, and its Ethernet

// TCP port numbers where peers may probe (reachability_probe.h), by index among a rank's NICs; 0: none, as it is not met by
// sockets.
using ProbePorts = std::array<uint16_t, kMaxNics>;

// Whether every field holds what this library could have written; a peer's NIC is used only then.
bool well_formed(const NicAddress &nic);
Network network_of(const NicAddress &nic);
// The most wanted of a NIC's providers.
const ProviderRow &provider_of(const NicAddress &nic);
ReadMode read_mode_of(const NicAddress &nic);  // by that provider
std::string domain_of(const NicAddress &nic);  // what that provider calls the NIC: "eth0", "rdmap16s27-rdm"

// Whether libfabric has a provider for a domain, and why not. An empty domain stands for all domains of the provider that no
// other ProviderInfo names.
struct ProviderInfo {
    std::string provider;
    std::string domain;
    std::string why_not;  // empty: it can be used
    ReadMode read_mode = ReadMode::Direct;
};

// What libfabric would have if it had every provider: for a recorded machine.
std::vector<ProviderInfo> provider_infos_by_kind(const Machine &machine);

struct Refusal {
    std::string nic;
    std::string why;
};

struct NicAddresses {
    std::vector<NicAddress> nics;  // best first, kMaxNics at most: the best of each provider and IP family among them
    std::vector<Refusal> refused;
};

// Throws ODC_ERROR_ARGUMENT when ODC_INTERFACE names what the machine has not.
void check_interfaces(const Machine &machine, const RouteOptions &options);

// Throws as check_interfaces does.
NicAddresses nic_addresses_of(const Machine &machine, Device memory, const RouteOptions &options,
                              const std::vector<ProviderInfo> &infos);

}  // namespace odc

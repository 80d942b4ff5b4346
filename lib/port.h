// SPDX-License-Identifier: Apache-2.0
// A rank's ports: the NICs by which other hosts reach it, with the libfabric provider that serves each, as its peers see
// them. Pure functions of a machine, of where the rank's memory is, and of what libfabric offers there.
#pragma once

#include "machine.h"
#include "wishes.h"

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace odc {

constexpr uint32_t kinds(std::initializer_list<NicKind> list) {
    uint32_t mask = 0;
    for (const NicKind kind : list) {
        mask |= 1U << static_cast<unsigned>(kind);
    }
    return mask;
}

enum class Wire { Rdma, Sockets };
enum class Addressing { Ip, Own };

struct ProviderRow {
    const char *name;
    Wire wire;
    Addressing addressing;    // what its ranks meet by
    uint32_t kinds;           // of the NICs that it serves
    const char *suffix = "";  // its domain is the NIC's name and this
    const char *device = "";  // how the kernel begins the NIC's name, where libfabric begins the domain's with
    const char *domain = "";  // this
};

// Which provider serves which kind of NIC, most wanted first. verbs is before psm3, which serves the same NICs by
// messages; tcp is before net, which serves the same interfaces.
inline constexpr std::array<ProviderRow, 7> kProviders = {{
    {"cxi", Wire::Rdma, Addressing::Own, kinds({NicKind::Slingshot})},
    {"efa", Wire::Rdma, Addressing::Own, kinds({NicKind::Efa}), "-rdm"},
    {"opx", Wire::Rdma, Addressing::Own, kinds({NicKind::OmniPath}), "", "hfi1_", "ib"},
    {"verbs;ofi_rxm", Wire::Rdma, Addressing::Ip, kinds({NicKind::InfiniBand, NicKind::RoCE})},
    {"psm3", Wire::Rdma, Addressing::Own, kinds({NicKind::InfiniBand, NicKind::RoCE})},
    {"tcp;ofi_rxm", Wire::Sockets, Addressing::Ip,
     kinds({NicKind::Ethernet, NicKind::Wifi, NicKind::Tunnel, NicKind::IPoIB, NicKind::Loopback})},
    {"net", Wire::Sockets, Addressing::Ip,
     kinds({NicKind::Ethernet, NicKind::Wifi, NicKind::Tunnel, NicKind::IPoIB, NicKind::Loopback})},
}};

// As it travels between ranks. Names end with a zero byte.
struct Port {
    char provider[20];
    char domain[20];      // libfabric's: "eth0", "mlx5_0", "rdmap16s27-rdm"
    uint8_t address[16];  // of the family
    uint32_t speed;       // Mbit/s; 0: unknown
    uint8_t family;       // 4, 6; 0: none, or not known
    uint8_t prefix;       // bits
    uint8_t kind;         // NicKind
    uint8_t distance;     // Nearness of the NIC to the rank's memory
};
static_assert(sizeof(Port) == 64);

inline constexpr size_t kMaxPorts = 20;  // a host with sixteen adapters, and its Ethernet

// TCP port numbers where peers may knock (porch.h), by place in a rank's ports; 0: none, as it is not met by sockets.
using Doorsteps = std::array<uint16_t, kMaxPorts>;

// Whether every field holds what this library could have written; a peer's port is used only then.
bool well_formed(const Port &port);
Network network_of(const Port &port);
// The place of the port's provider in kProviders; kProviders.size() when it is in no row.
size_t provider_row(const Port &port);

std::string nic_name(const Port &port);  // what the kernel calls the port's NIC

// A provider that libfabric has for a domain, or says why not. An empty domain stands for all of the provider's that no
// other offer names.
struct Offer {
    std::string provider;
    std::string domain;
    std::string why_not;  // empty: it can be used
};

// What libfabric would offer if it had every provider: for a recorded machine.
std::vector<Offer> offers_by_kind(const Machine &machine);

struct Refusal {
    std::string nic;
    std::string why;
};

struct Ports {
    std::vector<Port> ports;  // best first, kMaxPorts at most: the best of each provider and IP family among them
    std::vector<Refusal> refused;
};

// Throws ODC_ERROR_ARGUMENT when ODC_INTERFACE names what the machine has not.
void check_interfaces(const Machine &machine, const Wishes &wishes);

// Throws as check_interfaces does.
Ports ports_of(const Machine &machine, Device memory, const Wishes &wishes, const std::vector<Offer> &offers);

}  // namespace odc

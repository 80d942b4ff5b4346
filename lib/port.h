// SPDX-License-Identifier: Apache-2.0
// A rank's ports: the NICs by which other hosts reach it, with the libfabric providers that can serve each, as its peers
// see them. Pure functions of a machine, of where the rank's memory is, and of what libfabric offers there.
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
// How a peer's slice comes into a caller's buffer: straight, or through registered memory from which it is copied.
enum class Landing { Direct, Staged };
constexpr const char *name_of(Landing landing) { return landing == Landing::Direct ? "direct" : "staged"; }

struct ProviderRow {
    const char *name;
    Wire wire;
    Addressing addressing;    // what its ranks meet by
    Landing landing;          // by its documentation; what libfabric says of it here counts more
    uint32_t kinds;           // of the NICs that it serves
    const char *suffix = "";  // its domain is the NIC's name and this
    const char *device = "";  // how the kernel begins the NIC's name, where libfabric begins the domain's with
    const char *domain = "";  // this
};

inline constexpr uint32_t kInterfaces =
    kinds({NicKind::Ethernet, NicKind::Wifi, NicKind::Tunnel, NicKind::IPoIB, NicKind::Loopback});

// Which provider serves which kind of NIC, most wanted first. verbs is before psm3, which serves the same NICs by
// messages. tcp, alone since libfabric 2.0, is as fast as with ofi_rxm and takes 148 MiB a context less (2.1); net, which
// became that tcp, is slower in 1.17.
inline constexpr std::array<ProviderRow, 8> kProviders = {{
    {"cxi", Wire::Rdma, Addressing::Own, Landing::Direct, kinds({NicKind::Slingshot})},
    {"efa", Wire::Rdma, Addressing::Own, Landing::Staged, kinds({NicKind::Efa}), "-rdm"},
    {"opx", Wire::Rdma, Addressing::Own, Landing::Direct, kinds({NicKind::OmniPath}), "", "hfi1_", "ib"},
    {"verbs;ofi_rxm", Wire::Rdma, Addressing::Ip, Landing::Staged, kinds({NicKind::InfiniBand, NicKind::RoCE})},
    {"psm3", Wire::Rdma, Addressing::Own, Landing::Direct, kinds({NicKind::InfiniBand, NicKind::RoCE})},
    {"tcp", Wire::Sockets, Addressing::Ip, Landing::Direct, kInterfaces},
    {"tcp;ofi_rxm", Wire::Sockets, Addressing::Ip, Landing::Direct, kInterfaces},
    {"net", Wire::Sockets, Addressing::Ip, Landing::Direct, kInterfaces},
}};

// As it travels between ranks. A set of providers is a mask of bits in the order of kProviders.
struct Port {
    char nic[36];         // as the kernel calls it: "eth0", "mlx5_0"; ends with a zero byte
    uint8_t address[16];  // of the family
    uint32_t speed;       // Mbit/s; 0: unknown
    uint16_t providers;   // any of these can serve it; once `settle` (route.h) has been called, one
    uint16_t staged;      // those of them by which reads into it are staged
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
// The most wanted of a port's providers.
const ProviderRow &provider_of(const Port &port);
Landing landing_at(const Port &port);     // by that provider
std::string domain_of(const Port &port);  // what that provider calls the NIC: "eth0", "rdmap16s27-rdm"

// A provider that libfabric has for a domain, or says why not. An empty domain stands for all of the provider's that no
// other offer names.
struct Offer {
    std::string provider;
    std::string domain;
    std::string why_not;  // empty: it can be used
    Landing landing = Landing::Direct;
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

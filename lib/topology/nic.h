// SPDX-License-Identifier: Apache-2.0
// A NIC of a machine, and why some NICs cannot reach other hosts.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace odc {

enum class NicKind : uint8_t {
    Ethernet,
    Wifi,
    Tunnel,
    IPoIB,
    InfiniBand,
    RoCE,
    Efa,
    Slingshot,
    OmniPath,
    Bridge,  // without a physical port; a bridge with one is Ethernet
    Dummy,
    Loopback
};

inline constexpr std::array<const char *, 12> kNicKinds = {"Ethernet",   "Wi-Fi",  "tunnel", "IPoIB",
                                                           "InfiniBand", "RoCE",   "EFA",    "Slingshot",
                                                           "Omni-Path",  "bridge", "dummy",  "loopback"};

constexpr const char *name_of(NicKind kind) { return kNicKinds[static_cast<size_t>(kind)]; }

enum class NicState : uint8_t { Up, Down, NoCarrier, Elsewhere, Unknown };

inline constexpr std::array<const char *, 5> kNicStates = {"up", "down", "no carrier", "elsewhere", "unknown"};

constexpr const char *name_of(NicState state) { return kNicStates[static_cast<size_t>(state)]; }

// An interface's address with its prefix.
struct Network {
    int family = 0;  // 4 or 6
    int prefix = 0;  // bits
    std::array<uint8_t, 16> address = {};

    bool operator==(const Network &) const = default;
};

// "192.0.2.2/24", "fd00::2/64". parse_network is network_text's inverse and returns family 0 for anything else.
Network parse_network(const std::string &text);
std::string network_text(const Network &network);
// fe80::/10 or 169.254/16.
bool is_link_local(const Network &network);
std::string subnet_text(const Network &network);  // "192.0.2.0/24"
bool same_subnet(const Network &a, const Network &b);

// Where a device or memory is in the machine, which gives its distance to others.
struct Site {
    int package = -1;                  // -1: unknown, or all of them
    int numa_node = -1;                // the same
    std::vector<std::string> bridges;  // PCI bus ids from the host bridge down; empty: not on PCI
};

struct Nic {
    std::string name;  // the kernel's: "eth0", "mlx5_0"
    NicKind kind = NicKind::Ethernet;
    NicState state = NicState::Unknown;
    int64_t speed = 0;   // Mbit/s; 0: unknown
    std::string bus_id;  // of the PCI function; "" if it has none
    std::string model;
    Site site;
    // An OpenFabrics device has those of the interfaces on the same PCI function, by which libfabric's IP providers and rdma_cm
    // connect.
    std::vector<Network> networks;
    bool networks_known = false;
};

// Why the NIC cannot reach another host; empty if it may.
std::string refusal(const Nic &nic);

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// Which of libfabric's providers libodc uses, for which kinds of NIC, and how.
#pragma once

#include "topology/nic.h"

#include <array>
#include <cstdint>
#include <initializer_list>

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
enum class ReadMode { Direct, Staged };
constexpr const char *name_of(ReadMode read_mode) { return read_mode == ReadMode::Direct ? "direct" : "staged"; }

struct ProviderRow {
    const char *name;
    Wire wire;
    Addressing addressing;    // what its ranks meet by
    ReadMode read_mode;       // by its documentation; what libfabric says of it here counts more
    uint32_t kinds;           // of the NICs that it serves
    const char *suffix = "";  // its domain is the NIC's name and this
    const char *device = "";  // prefix of its NICs' names in the kernel, which libfabric replaces by `domain`
    const char *domain = "";
};

inline constexpr uint32_t kInterfaces =
    kinds({NicKind::Ethernet, NicKind::Wifi, NicKind::Tunnel, NicKind::IPoIB, NicKind::Loopback});

// Which provider serves which kind of NIC, most wanted first. verbs is before psm3, which serves the same NICs by
// messages. tcp, alone since libfabric 2.0, is as fast as with ofi_rxm and takes 148 MiB a context less (2.1); net, which
// became that tcp, is slower in 1.17.
inline constexpr std::array<ProviderRow, 8> kProviders = {{
    {"cxi", Wire::Rdma, Addressing::Own, ReadMode::Direct, kinds({NicKind::Slingshot})},
    {"efa", Wire::Rdma, Addressing::Own, ReadMode::Staged, kinds({NicKind::Efa}), "-rdm"},
    {"opx", Wire::Rdma, Addressing::Own, ReadMode::Direct, kinds({NicKind::OmniPath}), "", "hfi1_", "ib"},
    {"verbs;ofi_rxm", Wire::Rdma, Addressing::Ip, ReadMode::Staged, kinds({NicKind::InfiniBand, NicKind::RoCE})},
    {"psm3", Wire::Rdma, Addressing::Own, ReadMode::Direct, kinds({NicKind::InfiniBand, NicKind::RoCE})},
    {"tcp", Wire::Sockets, Addressing::Ip, ReadMode::Direct, kInterfaces},
    {"tcp;ofi_rxm", Wire::Sockets, Addressing::Ip, ReadMode::Direct, kInterfaces},
    {"net", Wire::Sockets, Addressing::Ip, ReadMode::Direct, kInterfaces},
}};

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// What an endpoint is opened at, and what its memory is registered for.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace odc {

// A NIC that routes go through, at which an endpoint is opened.
struct FabricNic {
    std::string provider;  // "tcp;ofi_rxm"
    std::string domain;    // "eth0"
    int family = 0;        // 4 or 6; 0: the domain has only one address
    std::array<uint8_t, 16> address = {};
};

// What memory is registered for: RMA reads by peers, or as the local buffer of reads and messages.
enum class Access { RemoteRead, Local };

}  // namespace odc

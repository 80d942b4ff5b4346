// SPDX-License-Identifier: Apache-2.0
// The network interfaces of this process's network namespace, and RDMA devices, as the kernel reports them now.
#pragma once

#include "topology/nic.h"

#include <cstdint>
#include <string>
#include <vector>

namespace odc {

struct Interface {
    std::string name;
    NicKind kind = NicKind::Ethernet;
    NicState state = NicState::Unknown;
    int64_t speed = 0;  // Mbit/s; 0: unknown
    std::vector<Network> networks;
};

// In the kernel's order. Not from /sys, which may show another namespace's interfaces.
std::vector<Interface> interfaces();

// The first port of an InfiniBand, RoCE or EFA device. `kind`: RoCE if the link layer is Ethernet, else InfiniBand.
struct RdmaPort {
    NicKind kind = NicKind::InfiniBand;
    int64_t speed = 0;  // Mbit/s
};
RdmaPort rdma_port(const std::string &device);

// The cxi (Slingshot) device of a PCI function; "" if it has none.
std::string cxi_device(const std::string &bus_id);

}  // namespace odc

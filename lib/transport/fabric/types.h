// SPDX-License-Identifier: Apache-2.0
// What the context hands to the transport of other hosts when a job begins.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace odc {

class CudaDevice;
struct ControlBlock;

// An endpoint to be opened: the NIC that a route goes through.
struct FabricPort {
    std::string provider;  // "tcp;ofi_rxm"
    std::string domain;    // "eth0"
    int family = 0;        // 4 or 6; 0: none, the domain has only one address
    std::array<uint8_t, 16> address = {};
};

// What memory is registered for: to be read by peers, or to be the target of this rank's reads and messages.
enum class Access { RemoteRank, Local };

struct FabricTerms {
    int rank;
    int size;
    ControlBlock *mine;
    const CudaDevice *gpu;  // whose memory NICs reach (GPUDirect RDMA); NULL: host memory only
    size_t staging_bytes;   // for additions on their way, at most
    int64_t silence_ms;     // after which a host that does not answer counts as lost
};

// A rank of another host.
struct FabricPeer {
    int rank;
    int host;  // index, the same on all ranks
    int pid;
    std::string host_name;
    size_t port;                  // of this rank's, by which it is reached
    std::vector<std::byte> name;  // of its endpoint
};

// Another rank of this host.
struct FabricLocalPeer {
    int rank;
    int life;     // its pidfd
    int program;  // program.h
    const ControlBlock *block;
};

}  // namespace odc

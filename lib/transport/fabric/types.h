// SPDX-License-Identifier: Apache-2.0
// Configuration and peers of the transport for other hosts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace odc {

class CudaDevice;
class Log;
struct ControlBlock;

using Token = std::array<unsigned char, 16>;  // random, known to the job's ranks only

// A NIC that routes go through, at which an endpoint is opened.
struct FabricNic {
    std::string provider;  // "tcp;ofi_rxm"
    std::string domain;    // "eth0"
    int family = 0;        // 4 or 6; 0: the domain has only one address
    std::array<uint8_t, 16> address = {};
};

// What memory is registered for: RMA reads by peers, or as the local buffer of reads and messages.
enum class Access { RemoteRead, Local };

struct FabricConfig {
    int rank;
    int size;
    ControlBlock *mine;
    const CudaDevice *gpu;  // whose memory NICs reach (GPUDirect RDMA); NULL: host memory only
    size_t staging_bytes;   // of all bounce buffers
    int64_t silence_ms;     // after which a host that does not answer is lost
    Log *log;
};

// A rank of another host.
struct FabricPeer {
    int rank;
    int host;  // its index, the same on all ranks
    int pid;
    std::string host_name;
    size_t nic;                   // the index of this rank's NIC by which it is reached
    std::vector<std::byte> name;  // its endpoint's address
};

// Another rank of this host.
struct FabricLocalPeer {
    int rank;
    int pidfd;
    int program;  // see program.h
    const ControlBlock *block;
};

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// Configuration and peers of the transport for other hosts.
#pragma once

#include "transport/fabric/provider/fabric_nic.h"

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

// SPDX-License-Identifier: Apache-2.0
// Memory of this rank that NICs read and write. Where all ranks are on this host nothing is registered.
#pragma once

#include "transport/transport.h"

#include <cstdint>

namespace odc {

class BouncePool;
class Fabric;
enum class Access;

class RemoteMemory {
public:
    explicit RemoteMemory(Fabric *fabric) : fabric_(fabric) {}  // NULL: all ranks are on this host

    // Whether NICs reach the memory of this rank's GPU: then its slices there are registered, else their host shadows.
    bool reaches_gpu() const;
    // This rank's slice, to be read, and added to, once its shard is told of. Throws where the provider refuses the memory.
    void register_memory(const RemoteSlice &slice);
    // `record`: offset of the shard's.
    void deregister_memory(uint64_t record);
    // Bounce buffers, which live as long as the job. Throws likewise.
    void register_memory(const BouncePool &pool, Access access);

private:
    Fabric *fabric_;
};

}  // namespace odc

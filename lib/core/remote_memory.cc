// SPDX-License-Identifier: Apache-2.0
#include "core/remote_memory.h"

#include "transport/fabric/fabric.h"

namespace odc {

bool RemoteMemory::reaches_gpu() const { return fabric_ != nullptr && fabric_->reaches_gpu(); }

void RemoteMemory::register_memory(const RemoteSlice &slice) {
    if (fabric_ != nullptr) {
        fabric_->register_slice(slice);
    }
}

void RemoteMemory::deregister_memory(uint64_t record) {
    if (fabric_ != nullptr) {
        fabric_->deregister_slice(record);
    }
}

void RemoteMemory::register_memory(const BouncePool &pool, Access access) {
    if (fabric_ != nullptr) {
        fabric_->register_memory(pool, access);
    }
}

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/provider/registered_memory.h"

namespace odc {

void RegisteredMemory::register_memory(const std::vector<std::unique_ptr<FabricEndpoint>> &endpoints, std::byte *start,
                                       size_t bytes, MemoryKind kind, Access access) {
    Buffer buffer{start, bytes, {}};
    for (const auto &endpoint : endpoints) {
        // Otherwise reads into host memory need no registration.
        if (access == Access::RemoteRead || kind == MemoryKind::Gpu || endpoint->needs_local()) {
            buffer.regions.emplace(endpoint.get(), endpoint->register_memory(start, bytes, kind, access));
        }
    }
    buffers_.push_back(std::move(buffer));
}

std::optional<Registration> RegisteredMemory::find(const FabricEndpoint &endpoint, const std::byte *at) const {
    for (const Buffer &buffer : buffers_) {
        const auto region = buffer.regions.find(&endpoint);
        if (at >= buffer.start && at < buffer.start + buffer.bytes && region != buffer.regions.end()) {
            const MemoryRegion &one = region->second;
            return Registration{one.descriptor, one.address + static_cast<uint64_t>(at - buffer.start), one.key};
        }
    }
    return std::nullopt;
}

}  // namespace odc

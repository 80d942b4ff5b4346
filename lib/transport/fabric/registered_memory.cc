// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/registered_memory.h"

namespace odc {

void RegisteredMemory::register_memory(const std::vector<std::unique_ptr<FabricEndpoint>> &endpoints, std::byte *start,
                                       size_t bytes, MemoryKind kind, Access access) {
    Lent lent{start, bytes, {}};
    for (const auto &endpoint : endpoints) {
        // Else what is read into host memory may be anywhere.
        if (access == Access::RemoteRank || kind == MemoryKind::Gpu || endpoint->needs_local()) {
            lent.exposed.emplace(endpoint.get(), endpoint->expose(start, bytes, kind, access));
        }
    }
    lent_.push_back(std::move(lent));
}

std::optional<Registration> RegisteredMemory::find(const FabricEndpoint &endpoint, const std::byte *at) const {
    for (const Lent &lent : lent_) {
        const auto exposed = lent.exposed.find(&endpoint);
        if (at >= lent.start && at < lent.start + lent.bytes && exposed != lent.exposed.end()) {
            const Exposed &one = exposed->second;
            return Registration{one.descriptor, one.address + static_cast<uint64_t>(at - lent.start), one.key};
        }
    }
    return std::nullopt;
}

}  // namespace odc

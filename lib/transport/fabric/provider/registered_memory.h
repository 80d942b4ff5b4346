// SPDX-License-Identifier: Apache-2.0
// The context's long-lived buffers, registered once at every endpoint: gets into them and adds from them need no registration
// and no copy of their own.
#pragma once

#include "transport/fabric/provider/endpoint.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

namespace odc {

struct Registration {
    void *descriptor;
    uint64_t address;  // for peers
    uint64_t key;
};

// For the progress thread.
class RegisteredMemory {
public:
    // Throws, with the provider's message; then nothing is registered.
    void register_memory(const std::vector<std::unique_ptr<FabricEndpoint>> &endpoints, std::byte *start, size_t bytes,
                         MemoryKind kind, Access access);
    // The registration of the memory at `at` for this endpoint; none if it is not registered.
    std::optional<Registration> find(const FabricEndpoint &endpoint, const std::byte *at) const;

private:
    struct Buffer {
        std::byte *start;
        size_t bytes;
        std::unordered_map<const FabricEndpoint *, MemoryRegion> regions;
    };
    std::vector<Buffer> buffers_;
};

}  // namespace odc

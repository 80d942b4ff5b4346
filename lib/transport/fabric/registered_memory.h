// SPDX-License-Identifier: Apache-2.0
// Memory that the context keeps for transfers, registered once at every endpoint: what is read into it, or offered from it,
// needs neither a registration nor a copy of its own.
#pragma once

#include "transport/fabric/endpoint.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

namespace odc {

struct Registration {
    void *descriptor;
    uint64_t address;  // as peers name it
    uint64_t key;
};

// For the progress thread.
class RegisteredMemory {
public:
    // Throws, with the provider's words; then nothing is lent.
    void register_memory(const std::vector<std::unique_ptr<FabricEndpoint>> &endpoints, std::byte *start, size_t bytes,
                         MemoryKind kind, Access access);
    // What lies at `at`, for requests by this endpoint; none: it is not lent.
    std::optional<Registration> find(const FabricEndpoint &endpoint, const std::byte *at) const;

private:
    struct Lent {
        std::byte *start;
        size_t bytes;
        std::unordered_map<const FabricEndpoint *, Exposed> exposed;
    };
    std::vector<Lent> lent_;
};

}  // namespace odc

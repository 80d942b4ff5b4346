// SPDX-License-Identifier: Apache-2.0
// Bounded buffers between the network and the memory that it may not, or should not, reach itself: a ring at each
// endpoint, mapped when it is first asked for.
#pragma once

#include "transport/fabric/endpoint.h"

#include <cstddef>
#include <memory>
#include <unordered_map>
#include <vector>

namespace odc {

// Bytes of a slot for gradients where there are `staging_bytes` in all: whole stripes of every type, as gradients are no wider
// than their sums.
size_t staging_chunk_bytes(size_t staging_bytes);

class BounceRings {
public:
    class Ring {
    public:
        // Exposed, where the endpoint wants that, for `access`.
        Ring(FabricEndpoint &endpoint, size_t slots, size_t slot_bytes, Access access);

        // NULL: all are taken.
        std::byte *take();
        void give_back(std::byte *slot) { free_.push_back(slot); }
        const Exposed &exposed() const { return exposed_; }
        // Of a slot, as peers name it.
        uint64_t address(const std::byte *slot) const {
            return exposed_.address + static_cast<uint64_t>(slot - memory_.get());
        }

    private:
        struct Unmap {
            size_t bytes;
            void operator()(std::byte *memory) const;
        };
        std::unique_ptr<std::byte, Unmap> memory_;
        Exposed exposed_;
        std::vector<std::byte *> free_;
    };

    // At each endpoint as many slots of `slot_bytes` as `bytes` hold, but one at least.
    BounceRings(size_t bytes, size_t slot_bytes, Access access)
        : bytes_(bytes), slot_bytes_(slot_bytes), access_(access) {}

    size_t slot_bytes() const { return slot_bytes_; }
    // Throws when it cannot be mapped or exposed.
    Ring &at(FabricEndpoint &endpoint);

private:
    size_t bytes_;
    size_t slot_bytes_;
    Access access_;
    std::unordered_map<FabricEndpoint *, Ring> rings_;
};

}  // namespace odc

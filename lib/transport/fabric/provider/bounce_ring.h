// SPDX-License-Identifier: Apache-2.0
// Bounce buffers between the network and memory that is not registered or needs conversion: a bounded pool of slots per
// endpoint.
#pragma once

#include "transport/fabric/provider/endpoint.h"

#include <cstddef>
#include <memory>
#include <unordered_map>
#include <vector>

namespace odc {

// Bytes of a slot for gradients, of `staging_bytes` in all: whole stripes of every type, as gradients are no wider than their
// sums.
size_t staging_chunk_bytes(size_t staging_bytes);

class BounceRings {
public:
    class Ring {
    public:
        // Registers the slots for `access` where the endpoint needs that.
        Ring(FabricEndpoint &endpoint, size_t slots, size_t slot_bytes, Access access);

        // NULL if no slot is free.
        std::byte *take();
        uint64_t times_full() const { return times_full_; }
        void give_back(std::byte *slot) { free_.push_back(slot); }
        const MemoryRegion &region() const { return region_; }
        // A slot's address for peers.
        uint64_t address(const std::byte *slot) const {
            return region_.address + static_cast<uint64_t>(slot - memory_.get());
        }

    private:
        struct Unmap {
            size_t bytes;
            void operator()(std::byte *memory) const;
        };
        std::unique_ptr<std::byte, Unmap> memory_;
        MemoryRegion region_;
        std::vector<std::byte *> free_;
        uint64_t times_full_ = 0;
        bool is_full_ = false;
    };

    // At each endpoint as many slots of `slot_bytes` as fit into `bytes`, but at least one.
    BounceRings(size_t bytes, size_t slot_bytes, Access access)
        : bytes_(bytes), slot_bytes_(slot_bytes), access_(access) {}

    size_t slot_bytes() const { return slot_bytes_; }
    // How many times the slots have run out; takes in vain one after another count once.
    uint64_t times_full() const;
    // Creates the endpoint's slots at the first call; throws if they cannot be mapped or registered.
    Ring &at(FabricEndpoint &endpoint);

private:
    size_t bytes_;
    size_t slot_bytes_;
    Access access_;
    std::unordered_map<FabricEndpoint *, Ring> rings_;
};

}  // namespace odc

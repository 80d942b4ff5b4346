// SPDX-License-Identifier: Apache-2.0
// Slots in GPU memory, into which ranks of the same host copy gradients that the GPU of the slice's owner is to add
// (transport/cuda/owner_add.h): what they tell each other, in the owner's arena.
#pragma once

#include "memory/control_block.h"

#include <atomic>
#include <cstdint>

namespace odc {

// One sender's slot. Its uses are counted from 1; it is free when `added` has reached `staged`.
struct AddSlot {
    alignas(64) std::atomic<uint64_t> staged;  // by the sender: the last use, which the following describes
    std::atomic<uint64_t> copied;              // by the sender's stream: the last use whose gradients have come
    std::atomic<uint64_t> added;               // by the owner's stream: the last use that it has added
    uint64_t record;                           // offset of the shard's record in the owner's arena
    uint64_t first;                            // element of the slice
    uint64_t count;
    int32_t exponent;                 // of exact sums
    std::atomic<uint32_t> connected;  // of a sender's first slot: it has mapped their memory
};

}  // namespace odc

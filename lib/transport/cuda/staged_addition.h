// SPDX-License-Identifier: Apache-2.0
// An addition to one slice that goes in pieces of whole stripes, each through a slot.
#pragma once

#include "base/element_type.h"
#include "transport/cuda/bounce_pool.h"
#include "transport/shm/stripe_lock.h"
#include "transport/transport.h"

#include <algorithm>
#include <cstdint>

namespace odc {

class Endpoint;

struct StagedAddition {
    RemoteSlice to;
    Endpoint *endpoint;     // of the owner's host; NULL: this host
    const std::byte *from;  // the gradients of the whole slice, in GPU memory
    uint64_t stripe;        // the next one
    uint64_t generation;    // the current minibatch plus one

    // How many stripes the next piece has: as many as fit into a slot.
    uint64_t stripes() const {
        return std::min(BouncePool::kBytes / (stripe_elements(to) * element_size(to.gradient_type)),
                        stripe_count(to) - stripe);
    }
};

// The elements of an addition's next `stripes` stripes in its gradient.
struct PieceElements {
    PieceElements(const StagedAddition &addition, uint64_t stripes)
        : first(addition.stripe * stripe_elements(addition.to)),
          count(std::min(stripes * stripe_elements(addition.to), addition.to.numel - first)),
          from(addition.from + first * element_size(addition.to.gradient_type)),
          bytes(count * element_size(addition.to.gradient_type)) {}
    uint64_t first;
    uint64_t count;
    const std::byte *from;
    uint64_t bytes;
};

}  // namespace odc

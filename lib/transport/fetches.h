// SPDX-License-Identifier: Apache-2.0
// Slices of other hosts on their way into GPU memory: read piece by piece into pinned host memory, from where the caller's
// stream copies them.
#pragma once

#include "transport/slots.h"
#include "transport/transport.h"

#include <deque>
#include <memory>

namespace odc {

// A slice on its way, by one thread at a time.
struct Fetch {
    int owner;
    Path *path;
    RemoteSlice from;  // published
    std::byte *to;     // in GPU memory
    uint64_t filled;   // the running minibatch plus one

    struct Piece {
        size_t slot;
        uint64_t bytes;
        std::shared_ptr<Transfer> transfer;
    };
    uint64_t asked = 0;     // elements
    uint64_t enqueued = 0;  // bytes
    std::deque<Piece> pieces = {};

    bool is_enqueued() const { return asked == from.numel && pieces.empty(); }
};

// Calls for several fetches may overlap.
class Fetches {
public:
    // `bytes`: of pinned memory, which bounds what is on its way.
    Fetches(const CudaDevice &device, uint64_t bytes);

    // Asks for as much as there is room for, but leaves the last slots to those that are waited for: what has come for
    // others stays where it is until they are, too.
    void ask_ahead(Fetch &fetch);
    // Asks for what there is room for, and enqueues the copies of what has come; inside a CudaDevice::Scope. Whether any.
    bool advance(Fetch &fetch, cuda::Stream stream);
    // One that is given up, when all its transfers are settled.
    void drop(Fetch &fetch);
    bool are_idle() { return slots_.are_idle(); }

private:
    bool ask(Fetch &fetch, size_t spare);

    const CudaDevice &device_;
    Slots slots_;
};

}  // namespace odc

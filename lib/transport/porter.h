// SPDX-License-Identifier: Apache-2.0
// Additions from GPU memory to owners whose GPUs cannot be added to directly: the gradient is copied to pinned host
// memory piece by piece, and as soon as a piece is there a thread adds it to the owner's sums in host memory, which the
// owner adds on its own GPU in sync.
#pragma once

#include "pins.h"
#include "transport.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace odc {

class Porter {
public:
    // `bytes`: of pinned memory, which bounds what is on its way.
    Porter(const CudaDevice &device, int rank, uint64_t bytes);
    ~Porter();
    Porter(const Porter &) = delete;
    Porter &operator=(const Porter &) = delete;

    // Stripes of a slice: a piece of it that fits.
    struct Load {
        RemoteSlice to;
        const std::byte *from;  // the gradients of the whole slice, in GPU memory
        uint64_t stripe;        // the first
        uint64_t filled;        // the running minibatch plus one
    };
    // Copies on the stream as many stripes as there is room for, and sees to the rest; inside a CudaDevice::Scope. How
    // many; 0: none now.
    uint64_t carry(const Load &load, cuda::Stream stream);
    bool is_idle();
    // Nothing more is added. What streams copy may still be on its way.
    void stop();
    bool has_landed();

private:
    struct Parcel {
        size_t slot;
        uint64_t number;
        Load load;
        uint64_t stripes;
    };
    class Stop;
    void run();
    bool deliver(const Parcel &parcel);
    std::atomic<uint64_t> &word(size_t slot) const {
        return reinterpret_cast<std::atomic<uint64_t> *>(words_.start())[slot];
    }

    const CudaDevice &device_;
    int rank_;
    size_t slots_;
    PinnedMemory staging_;
    PinnedMemory words_;  // written behind each copy

    std::mutex mutex_;
    std::condition_variable wake_;
    std::vector<size_t> free_;
    std::deque<Parcel> parcels_;
    uint64_t last_ = 0;
    size_t carried_ = 0;  // by the thread, at this moment
    std::atomic<bool> stopping_{false};
    std::thread thread_;
};

}  // namespace odc

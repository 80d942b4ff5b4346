// SPDX-License-Identifier: Apache-2.0
// Additions from GPU memory to owners whose GPUs cannot be added to directly: the gradient is copied to slots piece by piece,
// and as soon as a piece is there a thread lets the owner's host read it, or adds it to the owner's sums in the memory of this
// host, which the owner adds on its own GPU in sync.
#pragma once

#include "transport/cuda/bounce_pool.h"
#include "transport/transport.h"

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace odc {

class StagingProxy {
public:
    static constexpr size_t kLeastSlots = 1;

    // `slots`: they bound what is on its way. In host memory, unless all owners are on other hosts.
    StagingProxy(const CudaDevice &device, int rank, std::unique_ptr<BouncePool> slots);
    ~StagingProxy();
    StagingProxy(const StagingProxy &) = delete;
    StagingProxy &operator=(const StagingProxy &) = delete;

    // Stripes of a slice: a piece of it that fits.
    struct Load {
        RemoteSlice to;
        Endpoint *path;         // to the owner's host; NULL: it is this one, and `to` lies in its memory
        const std::byte *from;  // the gradients of the whole slice, in GPU memory
        uint64_t stripe;        // the first
        uint64_t epoch;         // the running minibatch plus one
    };
    // Copies on the stream as many stripes as there is room for, and sees to the rest; inside a CudaDevice::Scope. How
    // many; 0: none now.
    uint64_t carry(const Load &load, cuda::Stream stream);
    const BouncePool &slots() const { return *slots_; }
    bool is_idle();
    // The owner, on another host, of what has been on its way longest; none: nothing is.
    std::optional<int> awaited();
    // Nothing more is added. What streams copy, and what other hosts read, may still be on its way.
    void stop();
    bool has_landed();

private:
    struct Piece {
        size_t slot;
        Load load;
        uint64_t stripes;
    };
    struct Pending {
        size_t slot;
        std::shared_ptr<Request> request;
    };
    class Stop;
    void run();
    bool step(std::unique_lock<std::mutex> &lock);
    void collect();
    bool deliver(const Piece &piece);
    std::shared_ptr<Request> send(const Piece &piece);

    const CudaDevice &device_;
    int rank_;
    std::unique_ptr<BouncePool> slots_;

    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<Piece> pieces_;
    std::vector<Pending> pending_;
    size_t carried_ = 0;  // by the thread, at this moment
    std::atomic<bool> stopping_{false};
    std::thread thread_;
};

}  // namespace odc

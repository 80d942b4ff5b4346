// SPDX-License-Identifier: Apache-2.0
// Additions from GPU memory to owners that its GPU cannot add to directly. The stream copies the gradient to slots; as soon
// as a slot is filled, a thread lets the owner's host read it or adds it to the owner's host shadow on this host, which the
// owner adds to its sums on the GPU in sync.
#pragma once

#include "transport/cuda/bounce_pool.h"
#include "transport/cuda/staged_addition.h"
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

    // `slots` bound the pending additions. They are in host memory, unless all owners are on other hosts.
    StagingProxy(const CudaDevice &device, int rank, std::unique_ptr<BouncePool> slots);
    ~StagingProxy();
    StagingProxy(const StagingProxy &) = delete;
    StagingProxy &operator=(const StagingProxy &) = delete;

    // Enqueues the copy of as many stripes as fit into a slot and leaves adding them to the thread. Returns their number; 0
    // if no slot is free. The caller has a CudaDevice::Scope.
    uint64_t stage(const StagedAddition &addition, cuda::Stream stream);
    const BouncePool &slots() const { return *slots_; }
    bool is_idle();
    // The owner of the oldest pending addition to another host; none if there is none.
    std::optional<int> awaited_owner();
    // Why it could not add something, whose slot it keeps; none if there was nothing.
    std::optional<Error> error();
    // Adds nothing more. Streams and other hosts may still access slots.
    void stop();
    // Whether streams and other hosts are done with all slots.
    bool is_drained();

private:
    struct Piece {
        size_t slot;
        StagedAddition addition;
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
    bool add(const Piece &piece);
    std::shared_ptr<Request> send(const Piece &piece);

    const CudaDevice &device_;
    int rank_;
    std::unique_ptr<BouncePool> slots_;

    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<Piece> pieces_;
    std::vector<Pending> pending_;
    size_t adding_ = 0;  // pieces that the thread is adding now
    std::optional<Error> error_;
    std::atomic<bool> stopping_{false};
    std::thread thread_;
};

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// Additions from other hosts with GPUDirect RDMA: a network adapter reads gradients into slots in GPU memory, from which a
// kernel adds them.
#pragma once

#include "transport/cuda/add_kernel.h"
#include "transport/cuda/bounce_pool.h"
#include "transport/transport.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace odc {

// For the progress thread; stop() and is_idle() are for any thread.
class GdrAdd {
public:
    static constexpr size_t kLeastSlots = 1;

    // `slots`: in GPU memory.
    GdrAdd(const CudaDevice &device, const AddKernel &add_kernel, std::unique_ptr<BouncePool> slots);

    // A slot for a chunk of at most BouncePool::kBytes; NULL if none is free.
    std::byte *take();
    void give_back(std::byte *slot);
    // Enqueues the addition of the slot's gradients to `count` elements from `first` on.
    void start(const RemoteSlice &to, uint64_t first, uint64_t count, std::byte *slot);
    // Whether the slot's addition is done; if so, gives the slot back.
    bool finish(std::byte *slot);

    const BouncePool &slots() const { return *slots_; }
    // Makes start() do nothing.
    void stop();
    // Whether all started additions are done.
    bool is_idle();

private:
    const CudaDevice &device_;
    const AddKernel &add_kernel_;
    std::unique_ptr<BouncePool> slots_;
    std::mutex mutex_;
    std::vector<size_t> busy_;  // slots with a pending addition
    bool stopped_ = false;
    bool lost_ = false;  // an addition failed halfway, so its completion is never known
};

}  // namespace odc

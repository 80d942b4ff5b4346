// SPDX-License-Identifier: Apache-2.0
// Gradients from other hosts for sums in GPU memory: an adapter reads them into slots there, from where a kernel adds them.
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

// The progress thread takes slots and adds; another one may stop that.
class GdrAdd {
public:
    static constexpr size_t kLeastSlots = 1;

    // `slots`: in GPU memory.
    GdrAdd(const CudaDevice &device, const AddKernel &adder, std::unique_ptr<BouncePool> slots);

    // For a chunk of at most Slots::kBytes; NULL: none now.
    std::byte *take();
    void give_back(std::byte *slot);
    // Enqueues the addition of the slot's gradients to the `count` elements from `first` on.
    void start(const RemoteSlice &to, uint64_t first, uint64_t count, std::byte *slot);
    // Whether what was started from the slot has been added; then it is given back.
    bool finish(std::byte *slot);

    const BouncePool &slots() const { return *slots_; }
    // Nothing more is started.
    void stop();
    // What was started is done.
    bool are_idle();

private:
    const CudaDevice &device_;
    const AddKernel &adder_;
    std::unique_ptr<BouncePool> slots_;
    std::mutex mutex_;
    std::vector<size_t> busy_;  // slots from which is added
    bool stopped_ = false;
    bool lost_ = false;  // something failed halfway, and may be under way for ever
};

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// Bounce buffers between a stream and the network or a host thread. The stream writes a slot's completion word behind its copy.
// The slots are in pinned host memory or, where network adapters reach it, in GPU memory.
#pragma once

#include "transport/cuda/pinned_memory.h"
#include "transport/cuda/vmm_memory.h"
#include "transport/transport.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace odc {

// Thread-safe.
class BouncePool {
public:
    static constexpr uint64_t kBytes = uint64_t{1} << 20;  // of a slot

    // With as many slots as `bytes` hold, but at least `least`. Throws ODC_ERROR_NO_MEMORY.
    static std::unique_ptr<BouncePool> of_pinned_memory(const CudaDevice &device, uint64_t bytes, size_t least);
    static std::unique_ptr<BouncePool> of_gpu_memory(const CudaDevice &device, uint64_t bytes, size_t least,
                                                     const Deadline &deadline);
    BouncePool(const BouncePool &) = delete;
    BouncePool &operator=(const BouncePool &) = delete;

    // Takes a slot if more than `spare` are free.
    std::optional<size_t> take(size_t spare);
    void give_back(size_t slot);
    // Frees the slot once the stream has done the work enqueued so far. The caller has a CudaDevice::Scope.
    void give_back_after(size_t slot, cuda::Stream stream);

    // Enqueues the write of the slot's completion word. The caller has a CudaDevice::Scope.
    void signal(size_t slot, cuda::Stream stream);
    // Whether the stream has written it.
    bool is_done(size_t slot) const;

    MemoryKind kind() const { return gpu_ ? MemoryKind::Gpu : MemoryKind::Host; }
    std::byte *start(size_t slot) const { return start() + slot * kBytes; }
    size_t slot_at(const std::byte *place) const { return static_cast<size_t>(place - start()) / kBytes; }
    // The slot's address for streams.
    cuda::Address address(size_t slot) const { return address_ + slot * kBytes; }
    // How many times the slots have run out; takes in vain one after another count once.
    uint64_t times_full() const { return times_full_.load(std::memory_order_relaxed); }
    size_t count() const { return count_; }
    // The memory of all slots.
    std::byte *start() const { return gpu_ ? gpu_->start() : pinned_->start(); }
    size_t bytes() const { return count_ * kBytes; }
    // Whether the streams have done their work on all slots that were given back.
    bool is_idle();

private:
    BouncePool(const CudaDevice &device, size_t count, std::unique_ptr<PinnedMemory> pinned,
               std::unique_ptr<CudaMemory> gpu);
    void collect();
    std::atomic<uint64_t> &word(size_t slot) const {
        return reinterpret_cast<std::atomic<uint64_t> *>(words_.start())[slot];
    }

    const CudaDevice &device_;
    size_t count_;
    std::unique_ptr<PinnedMemory> pinned_;  // one of these is NULL
    std::unique_ptr<CudaMemory> gpu_;
    cuda::Address address_;
    PinnedMemory words_;
    std::vector<uint64_t> expected_;  // the value of each word once the stream is done
    std::mutex mutex_;
    std::vector<size_t> free_;
    bool full_ = false;  // the last take() found none
    std::atomic<uint64_t> times_full_{0};
    std::vector<size_t> draining_;  // given back while a stream still uses them
};

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// Pieces of memory through which a stream and the network, or a thread of the host, hand bytes to each other: behind its
// copy the stream writes the slot's word. Of pinned host memory, or, where adapters reach it, of GPU memory.
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

// Safe from several threads.
class BouncePool {
public:
    static constexpr uint64_t kBytes = uint64_t{1} << 20;  // of one

    // As many as `bytes` hold, but `least` at least. Throws ODC_ERROR_NO_MEMORY.
    static std::unique_ptr<BouncePool> of_pinned_memory(const CudaDevice &device, uint64_t bytes, size_t least);
    static std::unique_ptr<BouncePool> of_gpu_memory(const CudaDevice &device, uint64_t bytes, size_t least,
                                                     const Deadline &deadline);
    BouncePool(const BouncePool &) = delete;
    BouncePool &operator=(const BouncePool &) = delete;

    // One of which `spare` others are free at that moment; none: ask again.
    std::optional<size_t> take(size_t spare);
    void give_back(size_t slot);
    // When the stream has done what has been enqueued so far; inside a CudaDevice::Scope.
    void give_back_behind(size_t slot, cuda::Stream stream);

    // Enqueues the word; inside a CudaDevice::Scope. `is_done`: the stream has come so far.
    void mark(size_t slot, cuda::Stream stream);
    bool is_done(size_t slot) const;

    MemoryKind kind() const { return gpu_ ? MemoryKind::Gpu : MemoryKind::Host; }
    std::byte *start(size_t slot) const { return start() + slot * kBytes; }
    size_t slot_at(const std::byte *place) const { return static_cast<size_t>(place - start()) / kBytes; }
    // As streams see it.
    cuda::Address address(size_t slot) const { return address_ + slot * kBytes; }
    // All of them.
    std::byte *start() const { return gpu_ ? gpu_->start() : pinned_->start(); }
    size_t bytes() const { return count_ * kBytes; }
    // No stream has to do with one that was given back.
    bool are_idle();

private:
    BouncePool(const CudaDevice &device, size_t count, std::unique_ptr<PinnedMemory> pinned,
               std::unique_ptr<CudaMemory> gpu);
    void collect();
    std::atomic<uint64_t> &word(size_t slot) const {
        return reinterpret_cast<std::atomic<uint64_t> *>(words_.start())[slot];
    }

    const CudaDevice &device_;
    size_t count_;
    std::unique_ptr<PinnedMemory> pinned_;  // one of these
    std::unique_ptr<CudaMemory> gpu_;
    cuda::Address address_;
    PinnedMemory words_;
    std::vector<uint64_t> marks_;  // what the words are to be
    std::mutex mutex_;
    std::vector<size_t> free_;
    std::vector<size_t> leaving_;  // given back behind what a stream does
};

}  // namespace odc

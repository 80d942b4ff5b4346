// SPDX-License-Identifier: Apache-2.0
// Pieces of pinned host memory through which a stream and a thread of the host hand bytes to each other: behind its copy
// the stream writes the slot's word.
#pragma once

#include "pins.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace odc {

// Safe from several threads.
class Slots {
public:
    static constexpr uint64_t kBytes = uint64_t{1} << 20;  // of one

    // As many as `bytes` hold, but `least` at least.
    Slots(const CudaDevice &device, uint64_t bytes, size_t least);
    Slots(const Slots &) = delete;
    Slots &operator=(const Slots &) = delete;

    // One of which `spare` others are free at that moment; none: ask again.
    std::optional<size_t> take(size_t spare);
    void give_back(size_t slot);
    // When the stream has done what has been enqueued so far; inside a CudaDevice::Scope.
    void give_back_behind(size_t slot, cuda::Stream stream);

    // Enqueues the word; inside a CudaDevice::Scope. `is_done`: the stream has come so far.
    void mark(size_t slot, cuda::Stream stream);
    bool is_done(size_t slot) const;

    std::byte *start(size_t slot) const { return memory_.start() + slot * kBytes; }
    cuda::Address address(size_t slot) const { return memory_.address() + slot * kBytes; }
    // No stream has to do with one that was given back.
    bool are_idle();

private:
    void collect();
    std::atomic<uint64_t> &word(size_t slot) const {
        return reinterpret_cast<std::atomic<uint64_t> *>(words_.start())[slot];
    }

    const CudaDevice &device_;
    size_t count_;
    PinnedMemory memory_;
    PinnedMemory words_;
    std::vector<uint64_t> marks_;  // what the words are to be
    std::mutex mutex_;
    std::vector<size_t> free_;
    std::vector<size_t> leaving_;  // given back behind what a stream does
};

}  // namespace odc

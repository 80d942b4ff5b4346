// SPDX-License-Identifier: Apache-2.0
#include "transport/slots.h"

#include <algorithm>

namespace odc {

Slots::Slots(const CudaDevice &device, uint64_t bytes, size_t least)
    : device_(device), count_(std::max<size_t>(bytes / kBytes, least)), memory_(device, count_ * kBytes),
      words_(device, count_ * sizeof(uint64_t)), marks_(count_) {
    for (size_t slot = 0; slot < count_; ++slot) {
        free_.push_back(slot);
    }
}

std::optional<size_t> Slots::take(size_t spare) {
    const std::lock_guard lock(mutex_);
    if (free_.size() <= spare) {
        collect();
    }
    if (free_.size() <= spare) {
        return std::nullopt;
    }
    const size_t slot = free_.back();
    free_.pop_back();
    return slot;
}

void Slots::give_back(size_t slot) {
    const std::lock_guard lock(mutex_);
    free_.push_back(slot);
}

void Slots::give_back_behind(size_t slot, cuda::Stream stream) {
    mark(slot, stream);
    const std::lock_guard lock(mutex_);
    leaving_.push_back(slot);
}

void Slots::mark(size_t slot, cuda::Stream stream) {
    device_.check(cuda::driver().cuStreamWriteValue64(stream, words_.address() + slot * sizeof(uint64_t),
                                                      marks_[slot] + 1, cuda::kWriteValueDefault),
                  "cuStreamWriteValue64");
    ++marks_[slot];
}

bool Slots::is_done(size_t slot) const { return word(slot).load(std::memory_order_acquire) == marks_[slot]; }

void Slots::collect() {
    std::erase_if(leaving_, [this](size_t slot) {
        const bool done = is_done(slot);
        if (done) {
            free_.push_back(slot);
        }
        return done;
    });
}

bool Slots::are_idle() {
    const std::lock_guard lock(mutex_);
    collect();
    return leaving_.empty();
}

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
#include "transport/cuda/gdr_add.h"

#include <algorithm>

namespace odc {

GdrAdd::GdrAdd(const CudaDevice &device, const AddKernel &add_kernel, std::unique_ptr<BouncePool> slots)
    : device_(device), add_kernel_(add_kernel), slots_(std::move(slots)) {}

std::byte *GdrAdd::take() {
    const std::optional<size_t> slot = slots_->take(0);
    return slot ? slots_->start(*slot) : nullptr;
}

void GdrAdd::give_back(std::byte *slot) { slots_->give_back(slots_->slot_at(slot)); }

void GdrAdd::start(const RemoteSlice &to, uint64_t first, uint64_t count, std::byte *slot) {
    const std::lock_guard lock(mutex_);
    if (stopped_) {
        return;
    }
    const CudaDevice::Scope scope(device_);
    device_.flush_remote_writes();
    // The sums are zero: the owner's stream had cleared them before it published.
    const uint64_t additions = first == 0 ? 1 : 0;
    try {
        add_kernel_.enqueue({{to, first, count, slot, additions}}, AddScope::OwnGpu, device_.own_stream());
        slots_->signal(slots_->slot_at(slot), device_.own_stream());
    } catch (...) {
        lost_ = true;
        throw;
    }
    busy_.push_back(slots_->slot_at(slot));
}

bool GdrAdd::finish(std::byte *slot) {
    const std::lock_guard lock(mutex_);
    const auto busy = std::find(busy_.begin(), busy_.end(), slots_->slot_at(slot));
    if (busy == busy_.end() || !slots_->is_done(*busy)) {
        return false;
    }
    slots_->give_back(*busy);
    busy_.erase(busy);
    return true;
}

void GdrAdd::stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
}

bool GdrAdd::is_idle() {
    const std::lock_guard lock(mutex_);
    return !lost_ && std::all_of(busy_.begin(), busy_.end(), [this](size_t slot) { return slots_->is_done(slot); });
}

}  // namespace odc

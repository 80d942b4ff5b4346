// SPDX-License-Identifier: Apache-2.0
#include "transport/cuda/bounce_pool.h"

#include <algorithm>
#include <utility>

namespace odc {

namespace {

size_t slot_count(uint64_t bytes, size_t least) { return std::max<size_t>(bytes / BouncePool::kBytes, least); }

}  // namespace

std::unique_ptr<BouncePool> BouncePool::of_pinned_memory(const CudaDevice &device, uint64_t bytes, size_t least) {
    const size_t count = slot_count(bytes, least);
    return std::unique_ptr<BouncePool>(
        new BouncePool(device, count, std::make_unique<PinnedMemory>(device, count * kBytes), nullptr));
}

std::unique_ptr<BouncePool> BouncePool::of_gpu_memory(const CudaDevice &device, uint64_t bytes, size_t least,
                                                      const Deadline &deadline) {
    const size_t count = slot_count(bytes, least);
    return std::unique_ptr<BouncePool>(
        new BouncePool(device, count, nullptr, std::make_unique<CudaMemory>(device, count * kBytes, deadline)));
}

BouncePool::BouncePool(const CudaDevice &device, size_t count, std::unique_ptr<PinnedMemory> pinned,
                       std::unique_ptr<CudaMemory> gpu)
    : device_(device), count_(count), pinned_(std::move(pinned)), gpu_(std::move(gpu)),
      address_(pinned_ ? pinned_->address() : reinterpret_cast<cuda::Address>(gpu_->start())),
      words_(device, count_ * sizeof(uint64_t)), expected_(count_) {
    for (size_t slot = 0; slot < count_; ++slot) {
        free_.push_back(slot);
    }
}

std::optional<size_t> BouncePool::take(size_t spare) {
    const std::lock_guard lock(mutex_);
    if (free_.size() <= spare) {
        collect();
    }
    const bool was_full = std::exchange(full_, free_.size() <= spare);
    if (full_) {
        times_full_.fetch_add(was_full ? 0 : 1, std::memory_order_relaxed);
        return std::nullopt;
    }
    const size_t slot = free_.back();
    free_.pop_back();
    return slot;
}

void BouncePool::give_back(size_t slot) {
    const std::lock_guard lock(mutex_);
    free_.push_back(slot);
}

void BouncePool::give_back_after(size_t slot, cuda::Stream stream) {
    signal(slot, stream);
    const std::lock_guard lock(mutex_);
    draining_.push_back(slot);
}

void BouncePool::signal(size_t slot, cuda::Stream stream) {
    device_.check(cuda::driver().cuStreamWriteValue64(stream, words_.address() + slot * sizeof(uint64_t),
                                                      expected_[slot] + 1, cuda::kWriteValueDefault),
                  "cuStreamWriteValue64");
    ++expected_[slot];
}

bool BouncePool::is_done(size_t slot) const { return word(slot).load(std::memory_order_acquire) == expected_[slot]; }

void BouncePool::collect() {
    std::erase_if(draining_, [this](size_t slot) {
        const bool done = is_done(slot);
        if (done) {
            free_.push_back(slot);
        }
        return done;
    });
}

bool BouncePool::is_idle() {
    const std::lock_guard lock(mutex_);
    collect();
    return draining_.empty();
}

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
#include "transport/porter.h"

#include <algorithm>

#include "element.h"
#include "quiet_thread.h"
#include "transport/stripes.h"

namespace odc {

using cuda::driver;

namespace {

constexpr uint64_t kSlotBytes = uint64_t{1} << 20;

}  // namespace

// Ends a wait for a lock whose holder may be dead: who waits for this rank learns of the death elsewhere.
class Porter::Stop final : public Alarm {
public:
    explicit Stop(const std::atomic<bool> &stopping) : stopping_(stopping) {}
    void check(int) override {
        if (stopping_.load(std::memory_order_relaxed)) {
            fail(ODC_ERROR_ABORTED, "the context ends");
        }
    }

private:
    const std::atomic<bool> &stopping_;
};

Porter::Porter(const CudaDevice &device, int rank, uint64_t bytes)
    : device_(device), rank_(rank), slots_(std::max<uint64_t>(bytes / kSlotBytes, 1)),
      staging_(device, slots_ * kSlotBytes), words_(device, slots_ * sizeof(uint64_t)) {
    for (size_t slot = 0; slot < slots_; ++slot) {
        free_.push_back(slot);
    }
    thread_ = start_quietly("odc-porter", [this] { run(); });
}

Porter::~Porter() { stop(); }

void Porter::stop() {
    if (!thread_.joinable()) {
        return;
    }
    {
        const std::lock_guard lock(mutex_);
        stopping_.store(true, std::memory_order_relaxed);
    }
    wake_.notify_all();
    thread_.join();
}

uint64_t Porter::carry(const Load &load, cuda::Stream stream) {
    const int32_t type = load.to.gradient_type;
    const uint64_t in_stripe = stripe_elements(type);
    const uint64_t first = load.stripe * in_stripe;
    const uint64_t most = kSlotBytes / (in_stripe * element_size(type));
    const uint64_t left = stripe_count(load.to.numel * element_size(accumulator_type(type))) - load.stripe;
    const uint64_t stripes = std::min(most, left);
    const uint64_t elements = std::min(stripes * in_stripe, load.to.numel - first);
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
        return 0;
    }
    const size_t slot = free_.back();
    const uint64_t at = slot * kSlotBytes;
    device_.check(driver().cuMemcpyAsync(staging_.address() + at,
                                         reinterpret_cast<cuda::Address>(load.from + first * element_size(type)),
                                         elements * element_size(type), stream),
                  "cuMemcpyAsync");
    device_.check(driver().cuStreamWriteValue64(stream, words_.address() + slot * sizeof(uint64_t), last_ + 1,
                                                cuda::kWriteValueDefault),
                  "cuStreamWriteValue64");
    free_.pop_back();
    parcels_.push_back({slot, ++last_, load, stripes});
    wake_.notify_all();
    return stripes;
}

bool Porter::has_landed() {
    const std::lock_guard lock(mutex_);
    return std::all_of(parcels_.begin(), parcels_.end(), [this](const Parcel &one) {
        return word(one.slot).load(std::memory_order_acquire) == one.number;
    });
}

bool Porter::is_idle() {
    const std::lock_guard lock(mutex_);
    return parcels_.empty() && carried_ == 0;
}

bool Porter::deliver(const Parcel &parcel) {
    const Load &load = parcel.load;
    const uint64_t bytes = stripe_elements(load.to.gradient_type) * element_size(load.to.gradient_type);
    const std::byte *from = staging_.start() + parcel.slot * kSlotBytes;
    Stop stop(stopping_);
    int64_t waited_ns = 0;
    try {
        for (uint64_t i = 0; i < parcel.stripes; ++i, from += bytes) {
            const StripeLock lock(load.to.stripes[load.stripe + i], rank_, stop, &waited_ns);
            add_to_stripe(load.to, load.stripe + i, from, load.filled);
        }
        return true;
    } catch (const Error &) {
        return false;
    }
}

void Porter::run() {
    constexpr auto kNap = std::chrono::microseconds(50);
    std::unique_lock lock(mutex_);
    while (!stopping_.load(std::memory_order_relaxed)) {
        const auto arrived = std::find_if(parcels_.begin(), parcels_.end(), [this](const Parcel &one) {
            return word(one.slot).load(std::memory_order_acquire) == one.number;
        });
        if (arrived != parcels_.end()) {
            const Parcel parcel = *arrived;
            parcels_.erase(arrived);
            ++carried_;
            lock.unlock();
            const bool delivered = deliver(parcel);
            lock.lock();
            if (delivered) {  // else the context ends, and this is never done
                --carried_;
                free_.push_back(parcel.slot);
            }
        } else if (parcels_.empty()) {
            wake_.wait(lock);
        } else {
            wake_.wait_for(lock, kNap);  // the GPU rings no bell
        }
    }
}

}  // namespace odc

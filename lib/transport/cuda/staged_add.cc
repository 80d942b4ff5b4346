// SPDX-License-Identifier: Apache-2.0
#include "transport/cuda/staged_add.h"

#include <algorithm>

#include "base/element_type.h"
#include "base/thread.h"
#include "transport/shm/stripe_lock.h"

namespace odc {

using cuda::driver;

// Ends a wait for a lock whose holder may be dead: who waits for this rank learns of the death elsewhere.
class StagingProxy::Stop final : public WaitHook {
public:
    explicit Stop(const std::atomic<bool> &stopping) : stopping_(stopping) {}
    void check(int, int64_t) override {
        if (stopping_.load(std::memory_order_relaxed)) {
            fail(ODC_ERROR_ABORTED, "the context ends");
        }
    }

private:
    const std::atomic<bool> &stopping_;
};

StagingProxy::StagingProxy(const CudaDevice &device, int rank, std::unique_ptr<BouncePool> slots)
    : device_(device), rank_(rank), slots_(std::move(slots)),
      thread_(start_quietly("odc-staging", "the thread odc-staging", [this] { run(); })) {}

StagingProxy::~StagingProxy() { stop(); }

void StagingProxy::stop() {
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

namespace {

// What a load's stripes are of its gradient, in elements.
struct Stretch {
    Stretch(const StagingProxy::Load &load, uint64_t stripes)
        : first(load.stripe * stripe_elements(load.to.gradient_type)),
          count(std::min(stripes * stripe_elements(load.to.gradient_type), load.to.numel - first)) {}
    uint64_t first;
    uint64_t count;
};

}  // namespace

uint64_t StagingProxy::carry(const Load &load, cuda::Stream stream) {
    const int32_t type = load.to.gradient_type;
    const uint64_t most = BouncePool::kBytes / (stripe_elements(type) * element_size(type));
    const uint64_t left = stripe_count(load.to.numel * element_size(accumulator_type(type))) - load.stripe;
    const uint64_t stripes = std::min(most, left);
    const Stretch stretch(load, stripes);
    const std::optional<size_t> slot = slots_->take(0);
    if (!slot) {
        return 0;
    }
    const auto from = reinterpret_cast<cuda::Address>(load.from + stretch.first * element_size(type));
    device_.check(driver().cuMemcpyAsync(slots_->address(*slot), from, stretch.count * element_size(type), stream),
                  "cuMemcpyAsync");
    slots_->mark(*slot, stream);
    const std::lock_guard lock(mutex_);
    pieces_.push_back({*slot, load, stripes});
    wake_.notify_all();
    return stripes;
}

bool StagingProxy::has_landed() {
    const std::lock_guard lock(mutex_);
    return std::all_of(pieces_.begin(), pieces_.end(),
                       [this](const Piece &one) { return slots_->is_done(one.slot); }) &&
           std::all_of(pending_.begin(), pending_.end(), [](const Pending &one) { return one.request->settled(); });
}

bool StagingProxy::is_idle() {
    const std::lock_guard lock(mutex_);
    return pieces_.empty() && pending_.empty() && carried_ == 0;
}

std::optional<int> StagingProxy::awaited() {
    const std::lock_guard lock(mutex_);
    return pending_.empty() ? std::nullopt : std::optional(pending_.front().request->owner());
}

bool StagingProxy::deliver(const Piece &piece) {
    const Load &load = piece.load;
    const uint64_t bytes = stripe_elements(load.to.gradient_type) * element_size(load.to.gradient_type);
    const std::byte *from = slots_->start(piece.slot);
    Stop stop(stopping_);
    int64_t waited_ns = 0;
    try {
        for (uint64_t i = 0; i < piece.stripes; ++i, from += bytes) {
            const StripeLock lock(load.to.stripes[load.stripe + i], rank_, stop, &waited_ns);
            add_to_stripe(load.to, load.stripe + i, from, load.epoch);
        }
        return true;
    } catch (const Error &) {
        return false;
    }
}

std::shared_ptr<Request> StagingProxy::send(const Piece &piece) {
    const Load &load = piece.load;
    const Stretch stretch(load, piece.stripes);
    Stop stop(stopping_);
    int64_t waited_ns = 0;
    return load.path->start_add(part_of(load.to, stretch.first, stretch.count), slots_->start(piece.slot), load.epoch,
                                stop, &waited_ns);
}

// Of what was given up the slot stays taken, as the context ends.
void StagingProxy::collect() {
    std::erase_if(pending_, [this](const Pending &one) {
        const bool done = one.request->done();
        if (done) {
            slots_->give_back(one.slot);
        }
        return done;
    });
}

// False: nothing to do now.
bool StagingProxy::step(std::unique_lock<std::mutex> &lock) {
    collect();
    const auto arrived =
        std::find_if(pieces_.begin(), pieces_.end(), [this](const Piece &one) { return slots_->is_done(one.slot); });
    if (arrived == pieces_.end()) {
        return false;
    }
    const Piece piece = *arrived;
    pieces_.erase(arrived);
    if (piece.load.path != nullptr) {
        pending_.push_back({piece.slot, send(piece)});
        return true;
    }
    ++carried_;
    lock.unlock();
    const bool delivered = deliver(piece);
    lock.lock();
    if (delivered) {  // else the context ends, and this is never done
        --carried_;
        slots_->give_back(piece.slot);
    }
    return true;
}

void StagingProxy::run() {
    constexpr auto kNap = std::chrono::microseconds(50);
    std::unique_lock lock(mutex_);
    while (!stopping_.load(std::memory_order_relaxed)) {
        if (step(lock)) {
            continue;
        }
        if (pieces_.empty() && pending_.empty()) {
            wake_.wait(lock);
        } else {
            wake_.wait_for(lock, kNap);  // neither the GPU nor another host rings a bell here
        }
    }
}

}  // namespace odc

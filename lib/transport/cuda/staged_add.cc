// SPDX-License-Identifier: Apache-2.0
#include "transport/cuda/staged_add.h"

#include <algorithm>

#include "base/element_type.h"
#include "base/thread.h"
#include "transport/shm/stripe_lock.h"

namespace odc {

using cuda::driver;

// Ends waits for a lock when the context ends, as the lock's holder may be dead.
class StagingProxy::Stop final : public WaitHook {
public:
    explicit Stop(const std::atomic<bool> &stopping) : stopping_(stopping) {}
    void check(int, int64_t) override {
        if (stopping_.load(std::memory_order_relaxed)) {
            fail(ODC_ERROR_ABORTED, "the context is being destroyed");
        }
    }

private:
    const std::atomic<bool> &stopping_;
};

StagingProxy::StagingProxy(const CudaDevice &device, int rank, std::unique_ptr<BouncePool> slots)
    : device_(device), rank_(rank), slots_(std::move(slots)),
      thread_(start_thread("odc-staging", "the thread odc-staging", [this] { run(); })) {}

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

uint64_t StagingProxy::stage(const StagedAddition &addition, cuda::Stream stream) {
    const uint64_t stripes = addition.stripes();
    const PieceElements elements(addition, stripes);
    const std::optional<size_t> slot = slots_->take(0);
    if (!slot) {
        return 0;
    }
    device_.check(driver().cuMemcpyAsync(slots_->address(*slot), reinterpret_cast<cuda::Address>(elements.from),
                                         elements.bytes, stream),
                  "cuMemcpyAsync");
    slots_->signal(*slot, stream);
    const std::lock_guard lock(mutex_);
    pieces_.push_back({*slot, addition, stripes});
    wake_.notify_all();
    return stripes;
}

bool StagingProxy::is_drained() {
    const std::lock_guard lock(mutex_);
    return std::all_of(pieces_.begin(), pieces_.end(),
                       [this](const Piece &one) { return slots_->is_done(one.slot); }) &&
           std::all_of(pending_.begin(), pending_.end(), [](const Pending &one) { return !one.request->is_pending(); });
}

bool StagingProxy::is_idle() {
    const std::lock_guard lock(mutex_);
    return pieces_.empty() && pending_.empty() && adding_ == 0;
}

std::optional<int> StagingProxy::awaited_owner() {
    const std::lock_guard lock(mutex_);
    return pending_.empty() ? std::nullopt : std::optional(pending_.front().request->owner());
}

std::optional<Error> StagingProxy::error() {
    const std::lock_guard lock(mutex_);
    return error_;
}

bool StagingProxy::add(const Piece &piece) {
    const StagedAddition &addition = piece.addition;
    const uint64_t bytes = stripe_elements(addition.to) * element_size(addition.to.gradient_type);
    const std::byte *from = slots_->start(piece.slot);
    Stop stop(stopping_);
    try {
        for (uint64_t i = 0; i < piece.stripes; ++i, from += bytes) {
            const StripeLock lock(addition.to.stripes[addition.stripe + i], rank_, stop);
            add_to_stripe(addition.to, addition.stripe + i, from, addition.generation);
        }
        return true;
    } catch (const Error &error) {
        if (error.status() != ODC_ERROR_ABORTED) {
            const std::lock_guard lock(mutex_);
            error_ = error;
        }
        return false;
    }
}

std::shared_ptr<Request> StagingProxy::send(const Piece &piece) {
    const StagedAddition &addition = piece.addition;
    const PieceElements elements(addition, piece.stripes);
    Stop stop(stopping_);
    return addition.endpoint->start_add(part_of(addition.to, elements.first, elements.count), slots_->start(piece.slot),
                                        addition.generation, stop);
}

// The slot of a cancelled request stays taken, as the context is ending.
void StagingProxy::collect() {
    std::erase_if(pending_, [this](const Pending &one) {
        const bool done = one.request->is_complete();
        if (done) {
            slots_->give_back(one.slot);
        }
        return done;
    });
}

// False if there was nothing to do.
bool StagingProxy::step(std::unique_lock<std::mutex> &lock) {
    collect();
    const auto arrived =
        std::find_if(pieces_.begin(), pieces_.end(), [this](const Piece &one) { return slots_->is_done(one.slot); });
    if (arrived == pieces_.end()) {
        return false;
    }
    const Piece piece = *arrived;
    pieces_.erase(arrived);
    if (piece.addition.endpoint != nullptr) {
        pending_.push_back({piece.slot, send(piece)});
        return true;
    }
    ++adding_;
    lock.unlock();
    const bool added = add(piece);
    lock.lock();
    if (added) {  // else the context is ending, or the job fails
        --adding_;
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
            wake_.wait_for(lock, kNap);  // neither the GPU nor another host wakes this thread
        }
    }
}

}  // namespace odc

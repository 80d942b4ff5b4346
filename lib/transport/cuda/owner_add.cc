// SPDX-License-Identifier: Apache-2.0
#include "transport/cuda/owner_add.h"

#include <algorithm>
#include <utility>

#include "base/deadline.h"
#include "base/futex.h"
#include "base/thread.h"
#include "transport/cuda/add_kernel.h"
#include "transport/cuda/copier.h"
#include "transport/cuda/staged_addition.h"

namespace odc {

using cuda::driver;

namespace {

constexpr int64_t kEagerNs = 1'000'000;  // of spinning while gradients are on their way
constexpr auto kNap = std::chrono::microseconds(50);
constexpr int kSleepMs = 1000;

bool is_free(const AddSlot &slot) {
    return slot.added.load(std::memory_order_acquire) == slot.staged.load(std::memory_order_relaxed);
}

bool is_copied(const AddSlot &slot) {
    return slot.copied.load(std::memory_order_acquire) == slot.staged.load(std::memory_order_acquire);
}

}  // namespace

// ---- The sender ----

uint64_t OwnerAddSource::stage(const StagedAddition &addition, cuda::Stream stream) {
    const uint64_t stripes = addition.stripes();
    const PieceElements elements(addition, stripes);
    const std::lock_guard lock(mutex_);
    const auto slot = std::find_if(slots_.slots.begin(), slots_.slots.end(), is_free);
    const bool was_full = std::exchange(full_, slot == slots_.slots.end());
    if (full_) {
        times_full_.fetch_add(was_full ? 0 : 1, std::memory_order_relaxed);
        return 0;
    }
    const auto index = static_cast<size_t>(slot - slots_.slots.begin());
    const uint64_t use = slot->staged.load(std::memory_order_relaxed) + 1;
    slot->record = addition.to.record;
    slot->first = elements.first;
    slot->count = elements.count;
    slot->exponent = addition.to.exponent;
    std::byte *const to = slots_.memory + index * BouncePool::kBytes;
    copier_.enqueue({{elements.from, to, elements.bytes, true}}, stream);
    slot->staged.store(use, std::memory_order_release);
    device_.check(driver().cuStreamWriteValue64(stream, slots_.words[index], use, cuda::kWriteValueDefault),
                  "cuStreamWriteValue64");
    ring(*slots_.bell);
    return stripes;
}

bool OwnerAddSource::is_idle() const { return std::all_of(slots_.slots.begin(), slots_.slots.end(), is_free); }

bool OwnerAddSource::is_drained() const { return std::all_of(slots_.slots.begin(), slots_.slots.end(), is_copied); }

bool OwnerAddSource::awaits_owner() const {
    return std::any_of(slots_.slots.begin(), slots_.slots.end(),
                       [](const AddSlot &slot) { return !is_free(slot) && is_copied(slot); });
}

// ---- The owner ----

OwnerAddTarget::OwnerAddTarget(const CudaDevice &device, const AddKernel &add_kernel, AddSlots slots)
    : device_(device), add_kernel_(add_kernel), slots_(std::move(slots)), started_(slots_.slots.size()),
      thread_(start_thread("odc-add", "the thread odc-add", [this] { run(); })) {}

void OwnerAddTarget::add_slice(const RemoteSlice &slice) {
    const std::lock_guard lock(mutex_);
    slices_.insert_or_assign(slice.record, slice);
}

void OwnerAddTarget::remove_slice(uint64_t record) {
    const std::lock_guard lock(mutex_);
    slices_.erase(record);
}

std::optional<Error> OwnerAddTarget::error() const {
    return failed_.load(std::memory_order_acquire) ? error_ : std::nullopt;
}

void OwnerAddTarget::stop() {
    if (!thread_.joinable()) {
        return;
    }
    stopping_.store(true);
    ring(*slots_.bell);
    thread_.join();
}

bool OwnerAddTarget::is_idle() const {
    for (size_t i = 0; i < started_.size(); ++i) {
        if (slots_.slots[i].added.load(std::memory_order_acquire) != started_[i].load(std::memory_order_acquire)) {
            return false;
        }
    }
    return true;
}

// The GPU adds what its own stream is given one after another, so slots need no order.
bool OwnerAddTarget::start_copied() {
    bool any = false;
    for (size_t i = 0; i < slots_.slots.size(); ++i) {
        const uint64_t copied = slots_.slots[i].copied.load(std::memory_order_acquire);
        if (copied > started_[i].load(std::memory_order_relaxed)) {
            started_[i].store(copied, std::memory_order_release);  // first, so that a failure halfway is never idle
            start(i, copied);
            any = true;
        }
    }
    return any;
}

RemoteSlice OwnerAddTarget::slice_of(const AddSlot &slot) {
    const std::lock_guard lock(mutex_);
    const auto slice = slices_.find(slot.record);
    if (slice == slices_.end() || slot.first > slice->second.numel || slot.count > slice->second.numel - slot.first) {
        fail(ODC_ERROR_INTERNAL, "gradients came for elements {} to {} of a shard that does not have them", slot.first,
             slot.first + slot.count);
    }
    return slice->second;
}

void OwnerAddTarget::start(size_t index, uint64_t use) {
    const AddSlot &slot = slots_.slots[index];
    RemoteSlice to = slice_of(slot);
    to.exponent = slot.exponent;
    // The sums are zero: the owner's stream had cleared them before it published.
    const uint64_t additions = slot.first == 0 ? 1 : 0;
    const CudaDevice::Scope scope(device_);
    add_kernel_.enqueue({{to, slot.first, slot.count, slots_.memory + index * BouncePool::kBytes, additions}},
                        AddScope::OwnGpu, device_.own_stream());
    device_.check(
        driver().cuStreamWriteValue64(device_.own_stream(), slots_.words[index], use, cuda::kWriteValueDefault),
        "cuStreamWriteValue64");
}

// Whether gradients are on their way.
bool OwnerAddTarget::awaits_any() const {
    for (size_t i = 0; i < started_.size(); ++i) {
        if (slots_.slots[i].staged.load(std::memory_order_acquire) != started_[i].load(std::memory_order_relaxed)) {
            return true;
        }
    }
    return false;
}

// No GPU wakes this thread: it looks again while gradients are on their way, and sleeps until a sender says that some are.
void OwnerAddTarget::rest(uint32_t rung) {
    if (awaits_any()) {
        if (now_ns() - busy_ns_ < kEagerNs) {
            std::this_thread::yield();
        } else {
            std::this_thread::sleep_for(kNap);
        }
        return;
    }
    slots_.bell->waiters.fetch_add(1);
    futex_wait(slots_.bell->rung, rung, kSleepMs);
    slots_.bell->waiters.fetch_sub(1);
    busy_ns_ = now_ns();
}

void OwnerAddTarget::run() {
    try {
        for (;;) {
            const uint32_t rung = slots_.bell->rung.load();
            if (stopping_.load()) {
                return;
            }
            if (start_copied()) {
                busy_ns_ = now_ns();
            } else {
                rest(rung);
            }
        }
    } catch (const std::exception &) {
        error_ = current_error();
        failed_.store(true, std::memory_order_release);
    }
}

// ---- Both ----

void OwnerAdd::open_target(AddSlots slots) {
    target_ = std::make_unique<OwnerAddTarget>(device_, add_kernel_, std::move(slots));
}

void OwnerAdd::connect(int owner, AddSlots slots) {
    auto source = std::make_unique<OwnerAddSource>(device_, copier_, std::move(slots));
    const std::lock_guard lock(mutex_);
    sources_.emplace(owner, std::move(source));
}

OwnerAddSource *OwnerAdd::source_to(int owner) const {
    const std::lock_guard lock(mutex_);
    const auto source = sources_.find(owner);
    return source == sources_.end() ? nullptr : source->second.get();
}

template <class Check>
bool OwnerAdd::all_sources(Check check) const {
    const std::lock_guard lock(mutex_);
    return std::all_of(sources_.begin(), sources_.end(), [&](const auto &one) { return check(*one.second); });
}

bool OwnerAdd::is_idle() const {
    return all_sources([](const OwnerAddSource &source) { return source.is_idle(); });
}

bool OwnerAdd::is_drained() const {
    return (target_ == nullptr || target_->is_idle()) &&
           all_sources([](const OwnerAddSource &source) { return source.is_drained(); });
}

std::optional<int> OwnerAdd::awaited_owner() const {
    const std::lock_guard lock(mutex_);
    for (const auto &[owner, source] : sources_) {
        if (source->awaits_owner()) {
            return owner;
        }
    }
    return std::nullopt;
}

uint64_t OwnerAdd::times_full() const {
    uint64_t times = 0;
    all_sources([&](const OwnerAddSource &source) {
        times += source.times_full();
        return true;
    });
    return times;
}

void OwnerAdd::stop() {
    if (target_ != nullptr) {
        target_->stop();
    }
}

}  // namespace odc

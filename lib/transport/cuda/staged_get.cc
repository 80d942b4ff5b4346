// SPDX-License-Identifier: Apache-2.0
#include "transport/cuda/staged_get.h"

#include <algorithm>

#include "base/element_type.h"

namespace odc {

using cuda::driver;

namespace {

constexpr size_t kReserved = 2;  // slots for gets that somebody waits for: one is filled while the other is copied
static_assert(kReserved < StagedGets::kLeastSlots);

}  // namespace

StagedGets::StagedGets(const CudaDevice &device, std::unique_ptr<BouncePool> slots)
    : device_(device), slots_(std::move(slots)), arrival_words_(device, slots_->count() * sizeof(uint64_t)),
      arrivals_(slots_->count()) {}

// False if the get is requested as a whole, or no slot is free.
bool StagedGets::read_piece(StagedGet &get, size_t spare) {
    const size_t size = element_size(get.from.parameter_type);
    const uint64_t count = std::min<uint64_t>(BouncePool::kBytes / size, get.from.numel - get.requested);
    if (count == 0) {
        return false;
    }
    get.pieces.push_back({0, 0, count * size, nullptr});  // first, as it may fail
    StagedGet::Piece &piece = get.pieces.back();
    const std::optional<size_t> slot = slots_->take(spare);
    if (!slot) {
        get.pieces.pop_back();
        return false;
    }
    auto *const word = reinterpret_cast<std::atomic<uint64_t> *>(arrival_words_.start()) + *slot;
    const uint64_t arrival = ++arrivals_[*slot];
    piece.slot = *slot;
    piece.arrival = arrival;
    // Also if it was cancelled: then the job fails, but the stream must not hang.
    const auto on_end = [word, arrival, doorbell = get.doorbell](bool) {
        doorbell->waiters.fetch_sub(1);
        word->store(arrival, std::memory_order_release);
    };
    const RemoteSlice part = part_of(get.from, get.requested, count);
    get.doorbell->waiters.fetch_add(1);
    try {
        piece.request = get.endpoint->start_get(part, slots_->start(*slot), get.generation, {on_end, {}}).request;
    } catch (...) {
        get.doorbell->waiters.fetch_sub(1);
        get.pieces.pop_back();
        slots_->give_back(*slot);
        throw;
    }
    get.requested += count;
    return true;
}

void StagedGets::read(std::vector<StagedGet> &gets, size_t spare) {
    bool any = true;
    while (any) {
        any = false;
        for (StagedGet &get : gets) {
            any = read_piece(get, spare) || any;
        }
    }
}

void StagedGets::read_ahead(std::vector<StagedGet> &gets) { read(gets, kReserved); }

// A cancelled read never becomes ready; the wait for the get reports why.
bool StagedGets::is_ready(const StagedGet &get) const {
    if (get.pieces.empty()) {
        return false;
    }
    const Request &request = *get.pieces.front().request;
    return (slots_->kind() == MemoryKind::Host && request.is_pending()) || request.is_complete();
}

void StagedGets::enqueue(StagedGet &get, cuda::Stream stream, int64_t deadline_ns) {
    while (is_ready(get)) {
        const StagedGet::Piece &piece = get.pieces.front();
        if (slots_->kind() == MemoryKind::Gpu) {
            device_.flush_remote_writes();
        } else if (!piece.request->is_complete()) {
            piece.request->set_deadline(deadline_ns);
            {
                const std::lock_guard lock(mutex_);
                awaited_.push_back(piece.request);
            }
            device_.check(driver().cuStreamWaitValue64(stream, arrival_words_.address() + piece.slot * sizeof(uint64_t),
                                                       piece.arrival, cuda::kWaitValueGeq),
                          "cuStreamWaitValue64");
        }
        device_.check(driver().cuMemcpyAsync(reinterpret_cast<cuda::Address>(get.to + get.enqueued),
                                             slots_->address(piece.slot), piece.bytes, stream),
                      "cuMemcpyAsync");
        slots_->give_back_after(piece.slot, stream);
        get.enqueued += piece.bytes;
        get.pieces.pop_front();
    }
}

void StagedGets::release(StagedGet &get) {
    for (const StagedGet::Piece &piece : get.pieces) {
        slots_->give_back(piece.slot);
    }
    get.pieces.clear();
    get.requested = get.enqueued / element_size(get.from.parameter_type);
}

bool StagedGets::is_idle() { return !awaited_owner() && slots_->is_idle(); }

// What was cancelled stays, as the job fails.
template <class Predicate>
std::optional<int> StagedGets::first_owner(Predicate predicate) {
    const std::lock_guard lock(mutex_);
    std::erase_if(awaited_, [](const std::shared_ptr<Request> &one) { return one->is_complete(); });
    const auto found = std::find_if(awaited_.begin(), awaited_.end(),
                                    [&](const std::shared_ptr<Request> &one) { return predicate(*one); });
    return found != awaited_.end() ? std::optional((*found)->owner()) : std::nullopt;
}

std::optional<int> StagedGets::awaited_owner() {
    return first_owner([](const Request &one) { return one.is_pending(); });
}

std::optional<int> StagedGets::failed_owner() {
    // In this order, as it may end meanwhile.
    return first_owner([](const Request &one) { return !one.is_pending() && !one.is_complete(); });
}

}  // namespace odc

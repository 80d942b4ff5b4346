// SPDX-License-Identifier: Apache-2.0
#include "transport/cuda/staged_get.h"

#include <algorithm>

#include "base/element_type.h"

namespace odc {

using cuda::driver;

namespace {

constexpr size_t kKept = 2;  // slots for who waits: one is filled while the other is emptied
static_assert(kKept < StagedGets::kLeastSlots);

}  // namespace

StagedGets::StagedGets(const CudaDevice &device, std::unique_ptr<BouncePool> slots)
    : device_(device), slots_(std::move(slots)) {}

// False: there is no more of it, or no slot now.
bool StagedGets::ask_for_one(StagedGet &fetch, size_t spare) {
    const size_t size = element_size(fetch.from.parameter_type);
    const uint64_t count = std::min<uint64_t>(BouncePool::kBytes / size, fetch.from.numel - fetch.asked);
    const std::optional<size_t> slot = count > 0 ? slots_->take(spare) : std::nullopt;
    if (!slot) {
        return false;
    }
    const RemoteSlice part = part_of(fetch.from, fetch.asked, count);
    fetch.pieces.push_back({*slot, count * size, fetch.path->start_get(part, slots_->start(*slot), fetch.epoch)});
    fetch.asked += count;
    return true;
}

void StagedGets::ask(std::vector<StagedGet> &staged_gets, size_t spare) {
    bool any = true;
    while (any) {
        any = false;
        for (StagedGet &fetch : staged_gets) {
            any = ask_for_one(fetch, spare) || any;
        }
    }
}

void StagedGets::ask_ahead(std::vector<StagedGet> &staged_gets) { ask(staged_gets, kKept); }

void StagedGets::enqueue(StagedGet &fetch, cuda::Stream stream) {
    while (fetch.has_come()) {
        if (slots_->kind() == MemoryKind::Gpu) {
            device_.settle_remote_writes();
        }
        const StagedGet::Piece &piece = fetch.pieces.front();
        device_.check(driver().cuMemcpyAsync(reinterpret_cast<cuda::Address>(fetch.to + fetch.enqueued),
                                             slots_->address(piece.slot), piece.bytes, stream),
                      "cuMemcpyAsync");
        slots_->give_back_behind(piece.slot, stream);
        fetch.enqueued += piece.bytes;
        fetch.pieces.pop_front();
    }
}

void StagedGets::drop(StagedGet &fetch) {
    for (const StagedGet::Piece &piece : fetch.pieces) {
        slots_->give_back(piece.slot);
    }
    fetch.pieces.clear();
    fetch.asked = fetch.enqueued / element_size(fetch.from.parameter_type);
}

}  // namespace odc

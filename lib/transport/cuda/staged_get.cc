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
    : device_(device), slots_(std::move(slots)) {}

// False if the get is requested as a whole, or no slot is free.
bool StagedGets::read_piece(StagedGet &get, size_t spare) {
    const size_t size = element_size(get.from.parameter_type);
    const uint64_t count = std::min<uint64_t>(BouncePool::kBytes / size, get.from.numel - get.requested);
    const std::optional<size_t> slot = count > 0 ? slots_->take(spare) : std::nullopt;
    if (!slot) {
        return false;
    }
    const RemoteSlice part = part_of(get.from, get.requested, count);
    get.pieces.push_back(
        {*slot, count * size, get.endpoint->start_get(part, slots_->start(*slot), get.generation, {}).request});
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

void StagedGets::enqueue(StagedGet &get, cuda::Stream stream) {
    while (get.has_arrived()) {
        if (slots_->kind() == MemoryKind::Gpu) {
            device_.flush_remote_writes();
        }
        const StagedGet::Piece &piece = get.pieces.front();
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

}  // namespace odc

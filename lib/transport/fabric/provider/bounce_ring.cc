// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/provider/bounce_ring.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "memory/shard_record.h"

namespace odc {

namespace {

std::byte *map(size_t bytes) {
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        fail_errno(formatted("mmap of {} bytes for staging", bytes));
    }
    madvise(memory, bytes, MADV_DONTFORK);  // or copy-on-write after a fork() could separate it from the pinned pages
    madvise(memory, bytes, MADV_HUGEPAGE);  // all of it is used again and again
    return static_cast<std::byte *>(memory);
}

constexpr size_t kLeastChunks = 4;  // in `staging_bytes`

}  // namespace

size_t staging_chunk_bytes(size_t staging_bytes) {
    return std::clamp(staging_bytes / kLeastChunks / kStripeBytes * kStripeBytes, kStripeBytes, kMaxReadBytes);
}

void BounceRings::Ring::Unmap::operator()(std::byte *memory) const { munmap(memory, bytes); }

BounceRings::Ring::Ring(FabricEndpoint &endpoint, size_t slots, size_t slot_bytes, Access access)
    : memory_(map(slots * slot_bytes), Unmap{slots * slot_bytes}) {
    if (access == Access::RemoteRead || endpoint.needs_local()) {
        // Pages must exist before they are registered (FI_MR_ALLOCATED).
        std::memset(memory_.get(), 0, slots * slot_bytes);
        region_ = endpoint.register_memory(memory_.get(), slots * slot_bytes, MemoryKind::Host, access);
    }
    for (size_t i = slots; i > 0; --i) {
        free_.push_back(memory_.get() + (i - 1) * slot_bytes);
    }
}

std::byte *BounceRings::Ring::take() {
    if (free_.empty()) {
        times_full_ += is_full_ ? 0 : 1;  // it is asked again and again
        is_full_ = true;
        return nullptr;
    }
    is_full_ = false;
    std::byte *slot = free_.back();
    free_.pop_back();
    return slot;
}

uint64_t BounceRings::times_full() const {
    uint64_t times = 0;
    for (const auto &[endpoint, ring] : rings_) {
        times += ring.times_full();
    }
    return times;
}

BounceRings::Ring &BounceRings::at(FabricEndpoint &endpoint) {
    const size_t slots = std::max<size_t>(1, bytes_ / slot_bytes_);
    return rings_.try_emplace(&endpoint, endpoint, slots, slot_bytes_, access_).first->second;
}

}  // namespace odc

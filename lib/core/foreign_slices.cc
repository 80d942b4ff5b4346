// SPDX-License-Identifier: Apache-2.0
#include "core/foreign_slices.h"

#include <map>

#include "base/element_type.h"
#include "bootstrap/peer.h"
#include "core/job.h"
#include "memory/cache_entry.h"
#include "memory/partial_sum.h"
#include "transport/shm/stripe_lock.h"

namespace odc {

namespace {

uint64_t to_whole_line(uint64_t bytes) {
    constexpr uint64_t kLine = alignof(CacheEntry);
    return (bytes + kLine - 1) / kLine * kLine;
}

uint64_t entry_bytes(const Shard &shard, uint64_t index) {
    return sizeof(CacheEntry) +
           to_whole_line(shard.slices().numel(index) * element_size(shard.description().parameter_type));
}

// Owners of this host that have a slice, in the shard's order, if at least two of its ranks are here.
std::vector<uint64_t> holders_of(const Job &job, const Shard &shard) {
    std::vector<uint64_t> holders;
    uint64_t here = 0;
    for (uint64_t index = 0; index < shard.owners(); ++index) {
        if (job.on_this_host(shard.owner(index))) {
            ++here;
            if (shard.slices().numel(index) > 0) {
                holders.push_back(index);
            }
        }
    }
    return here > 1 ? holders : std::vector<uint64_t>{};
}

}  // namespace

// The slice of the k-th owner of another host is held by the k-th of this one, modulo their number: so memory, and with NICs in the
// order of ranks also rails, are used evenly.
void find_holders(const Job &job, Shard &shard) {
    const std::vector<uint64_t> holders = holders_of(job, shard);
    if (holders.empty()) {
        return;
    }
    auto slices = std::make_unique<ForeignSlices>();
    slices->of.resize(shard.owners());
    slices->holders = holders.size();
    std::map<size_t, size_t> owners_on;              // by host
    std::vector<ForeignSlice> next(holders.size());  // that each holder gets
    for (uint64_t index = 0; index < shard.owners(); ++index) {
        if (job.on_this_host(shard.owner(index)) || shard.slices().numel(index) == 0) {
            continue;
        }
        const size_t k = owners_on[job.peer(shard.owner(index)).host_index]++ % holders.size();
        ForeignSlice &foreign = next[k];
        foreign.holder = holders[k];
        foreign.entry.bytes = entry_bytes(shard, index);
        foreign.sum.bytes = PartialSumLayout(shard, index).bytes;
        slices->of[index] = foreign;
        if (foreign.holder == shard.own_index()) {
            slices->held.push_back(index);
        }
        ++foreign.number;
        foreign.entry.begin = foreign.entry.end();
        foreign.sum.begin = foreign.sum.end();
    }
    shard.engine_state = std::move(slices);
}

ForeignSlice *foreign_slice(const Shard &shard, uint64_t index) {
    auto *slices = static_cast<ForeignSlices *>(shard.engine_state.get());
    return slices != nullptr && slices->of[index].holder != ForeignSlice::kNone ? &slices->of[index] : nullptr;
}

uint64_t holder_count(const Shard &shard) {
    return static_cast<const ForeignSlices *>(shard.engine_state.get())->holders;
}

std::span<const uint64_t> held_slices(const Shard &shard) {
    const auto *const slices = static_cast<const ForeignSlices *>(shard.engine_state.get());
    return slices != nullptr ? std::span<const uint64_t>(slices->held) : std::span<const uint64_t>();
}

PartialSumLayout::PartialSumLayout(const Shard &shard, uint64_t index) {
    const Description &d = shard.description();
    const uint64_t sum_bytes = shard.slices().numel(index) * sum_size(d.gradient_type, d.summation);
    sums = sizeof(PartialSum) + to_whole_line(stripe_count(sum_bytes) * sizeof(Stripe));
    bytes = sums + to_whole_line(sum_bytes);
}

Shard::Held fit(const Shard &shard, ForeignSlice::Part ForeignSlice::*part, uint64_t left) {
    Shard::Held held;
    for (const uint64_t index : held_slices(shard)) {
        const ForeignSlice &foreign = *foreign_slice(shard, index);
        if (foreign.number == held.count && (foreign.*part).end() <= left) {
            held = {held.count + 1, (foreign.*part).end()};
        }
    }
    return held;
}

}  // namespace odc

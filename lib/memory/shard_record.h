// SPDX-License-Identifier: Apache-2.0
// A shard as its owner describes it: a record in the owner's arena, in a list that begins in its ControlBlock. Once it is in
// the list, only its atomic words change; it is reused after its shard is released and every peer has read past it.
#pragma once

#include "memory/free_ranges.h"

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace odc {

// The lock of one stripe of an accumulator, and the generation (minibatch plus one) of its sums: the first addition of a minibatch
// stores instead of adding, so nobody has to zero the accumulator.
struct Stripe {
    std::atomic<uint32_t> lock;
    // Under the lock:
    uint16_t addends;     // of exact sums, of this generation; one above kMostExactAddends: too many
    uint16_t not_finite;  // 1: some exact sums are kNotFinite
    uint64_t generation;
};
constexpr uint64_t kStripeBytes = uint64_t{64} << 10;

constexpr uint32_t kMostNameBytes = 255;

struct ShardRecord {
    std::atomic<uint64_t> next;       // offset of the next record; 0: none yet
    std::atomic<uint64_t> minibatch;  // of the registration; grows when the record is reused for another shard
    uint64_t numel;
    int32_t parameter_type;
    int32_t gradient_type;
    int32_t memory;        // odc_memory
    int32_t summation;     // ODC_SUM_EXACT or 0
    uint64_t slice_numel;  // of this owner; 0: none of the following
    // The slice in host memory, or the host shadow of a slice in GPU memory, if a rank needs one.
    Segment segment;      // contains the following three; 0 bytes: there is no such slice, or it is on another host
    uint64_t parameters;  // from the segment's beginning, if there is a parameter_type
    uint64_t stripes;     // these two if there is a gradient_type
    uint64_t accumulator;
    uint64_t cache;          // where this rank's entries of the node cache begin, from the segment's beginning
    uint64_t cache_entries;  // 0: it has none
    uint64_t partial_sums;   // likewise, where its partial sums begin
    uint64_t partial_sum_count;
    // The slice in GPU memory.
    uint64_t region;          // the owner's number of its allocation; 0: the slice is in host memory
    uint64_t gpu_parameters;  // from the region's beginning
    uint64_t gpu_accumulator;
    uint64_t record;   // offset of this record in the owner's arena
    uint64_t address;  // of the parameters, for RMA from other hosts with `key`
    uint64_t key;
    uint32_t name_bytes;
    uint32_t rank_count;   // 0: all ranks, none listed below
    uint32_t slice_count;  // 0: equal slices, none listed below
    std::atomic<uint32_t> released;
    std::atomic<uint64_t> published;  // this slice holds the parameters of minibatch published - 1
    // For exact sums only. An owner may be one minibatch ahead, so its votes (ExponentVote) take turns.
    std::atomic<int16_t> votes[2];  // of generation `published` and the one before, by parity
    int32_t first_exponent;         // of the first minibatch
    std::atomic<uint64_t> clamped;  // addends to this slice, over all minibatches
    // Followed without gaps by uint64_t slices[slice_count], int32_t ranks[rank_count], char name[name_bytes].

    const uint64_t *slices() const { return reinterpret_cast<const uint64_t *>(this + 1); }
    const int32_t *ranks() const { return reinterpret_cast<const int32_t *>(slices() + slice_count); }
    std::string_view name() const { return {reinterpret_cast<const char *>(ranks() + rank_count), name_bytes}; }
};

// Byte by byte: another rank's error text may be reading the name of the record's previous shard (text_name).
inline void write_bytes(void *to, const void *from, size_t count) {
    auto *const bytes = static_cast<unsigned char *>(to);
    for (size_t i = 0; i < count; ++i) {
        std::atomic_ref(bytes[i]).store(static_cast<const unsigned char *>(from)[i], std::memory_order_relaxed);
    }
}

// The name for an error text, also while the owner uses the record again: then of either shard, of both, or empty. `most`: the
// longest list of ranks.
inline std::string text_name(ShardRecord &record, uint32_t most) {
    const auto read = [](auto &value) { return std::atomic_ref(value).load(std::memory_order_relaxed); };
    const uint32_t slices = read(record.slice_count);
    const uint32_t ranks = read(record.rank_count);
    const uint32_t bytes = read(record.name_bytes);
    if (slices > most || ranks > most || bytes > kMostNameBytes) {
        return "";
    }
    auto *const name = reinterpret_cast<char *>(&record + 1) + slices * sizeof(uint64_t) + ranks * sizeof(int32_t);
    std::string text;
    for (uint32_t i = 0; i < bytes; ++i) {
        text += read(name[i]);
    }
    return text;
}

// `what`, here and below: the Description of a shard, or a RegisteredMessage with one.
template <class What>
uint64_t shard_record_bytes(const What &what) {
    return sizeof(ShardRecord) + what.slices.size() * sizeof(uint64_t) + what.ranks.size() * sizeof(int32_t) +
           what.name.size();
}

// Writes what the owner and its replicas in other processes have in common; the caller adds where the slice lies. A peer's
// odc_gather may still look at the record's previous shard: `minibatch` is written first, so that it cannot take the new
// shard's `released` and `published` for the previous one's.
template <class What>
void write_shard_record(ShardRecord &record, const What &what, uint64_t offset, uint64_t minibatch,
                        uint64_t slice_numel) {
    record.minibatch.store(minibatch, std::memory_order_relaxed);
    record.released.store(0, std::memory_order_release);
    record.published.store(0, std::memory_order_release);
    record.next.store(0, std::memory_order_relaxed);
    record.numel = what.numel;
    record.parameter_type = what.parameter_type;
    record.gradient_type = what.gradient_type;
    record.memory = what.memory;
    record.summation = what.summation;
    record.first_exponent = what.first_exponent;
    record.clamped.store(0, std::memory_order_relaxed);
    record.slice_numel = slice_numel;
    record.cache = 0;
    record.cache_entries = 0;
    record.partial_sums = 0;
    record.partial_sum_count = 0;
    record.record = offset;
    const auto write = [](uint32_t &value, size_t count) {
        std::atomic_ref(value).store(static_cast<uint32_t>(count), std::memory_order_relaxed);
    };
    write(record.name_bytes, what.name.size());
    write(record.rank_count, what.ranks.size());
    write(record.slice_count, what.slices.size());
    write_bytes(const_cast<uint64_t *>(record.slices()), what.slices.data(), what.slices.size() * sizeof(uint64_t));
    write_bytes(const_cast<int32_t *>(record.ranks()), what.ranks.data(), what.ranks.size() * sizeof(int32_t));
    write_bytes(const_cast<char *>(record.name().data()), what.name.data(), what.name.size());
}

}  // namespace odc

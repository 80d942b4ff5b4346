// SPDX-License-Identifier: Apache-2.0
// An entry of the node cache: a line with the words below and, behind it, a copy of one slice of another host, in the shared
// memory of the rank of this host that holds it (core/node_cache.h).
//
// The word says what the entry holds: a generation (minibatch plus one), a state, and the local rank of its reader.
//
// With g for the generation:
//     Empty, of an older generation  -> Reading(g, reader)  compare-and-swap of the rank that first wants the slice, or of the
//                                                           holder, which reads it ahead: its reader
//     Reading(g, reader)             -> Full(g, reader)     the reader's progress thread (release): all bytes are there
//     Reading(g, reader)             -> GivenUp(g, reader)  likewise: the read has ended without them
//     Reading(g, reader)             -> Empty               likewise, of a read ahead
//     Full, GivenUp(g, reader)       =  Empty for g + 1 and later generations
//
// 1. One compare-and-swap succeeds for a generation, so a slice is read into its entry once; a second may succeed where a read ahead
//    has ended without all bytes.
// 2. Only the reader ends Reading, when nothing is in flight to the entry. Nobody takes the entry from a reader that is stopped or
//    has left: its NIC may still write. A rank that does not wait for it, or finds that the read has ended, reads the slice into its
//    own buffer, as without a cache.
// 3. A reader arrives in no sync while it is Reading, so nothing is written into an entry after the entry's minibatch.
// 4. Full(g) does not change while it is copied: a rank claims the entry for g + 1 after the sync in which all ranks have arrived,
//    each after its gathers.
// 5. Ranks touch an entry in a minibatch only after its holder has published the shard in it, and before they arrive: then the holder
//    has not released the shard, and cannot.
// 6. Zeroed memory is Empty: generations begin at 1.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace odc {

enum class CacheState : uint64_t { Reading = 1, Full = 2, GivenUp = 3 };

class CacheWord {
public:
    explicit constexpr CacheWord(uint64_t value) : value_(value) {}
    constexpr CacheWord(uint64_t generation, CacheState state, size_t reader)
        : value_(generation << kGenerationShift | uint64_t{reader} << kReaderShift | static_cast<uint64_t>(state)) {}

    static constexpr CacheWord empty() { return CacheWord(0); }

    constexpr uint64_t value() const { return value_; }
    uint64_t generation() const { return value_ >> kGenerationShift; }
    size_t reader() const { return value_ >> kReaderShift & kReaderMask; }  // a local rank
    CacheState state() const { return static_cast<CacheState>(value_ & kStateMask); }

private:
    // 46 bits of generations last 2,000 years at a thousand minibatches a second; a host has at most 2^16 ranks (kTreeLevels).
    static constexpr int kReaderShift = 2;
    static constexpr int kGenerationShift = 18;
    static constexpr uint64_t kStateMask = 3;
    static constexpr uint64_t kReaderMask = 0xffff;
    uint64_t value_;
};

// When a rank of the host last wanted the slice: the generation, and how many slices of other hosts that rank had wanted in it before.
class CacheWant {
public:
    explicit CacheWant(uint64_t value) : value_(value) {}
    constexpr CacheWant(uint64_t generation, uint64_t order)
        : value_(generation << kGenerationShift | (order < kMostOrder ? order : kMostOrder)) {}

    constexpr uint64_t value() const { return value_; }
    uint64_t generation() const { return value_ >> kGenerationShift; }
    uint64_t order() const { return value_ & kMostOrder; }

private:
    static constexpr int kGenerationShift = 18;
    static constexpr uint64_t kMostOrder = (uint64_t{1} << kGenerationShift) - 1;
    uint64_t value_;
};

struct alignas(64) CacheEntry {
    std::atomic<uint64_t> word;
    std::atomic<uint64_t> want;

    std::byte *bytes() { return reinterpret_cast<std::byte *>(this + 1); }
};

}  // namespace odc

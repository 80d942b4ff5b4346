// SPDX-License-Identifier: Apache-2.0
// Work of this context on streams that is not known to be complete. Each stream writes a completion word behind an operation,
// which the host reads: so nobody synchronizes with a stream, and the caller may destroy one with work on it.
#pragma once

#include "transport/cuda/pinned_memory.h"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace odc {

// Thread-safe.
class PendingWork {
public:
    explicit PendingWork(const CudaDevice &device);

    // Adds an entry for work that is about to be enqueued, for the shard of that record; returns its number. The entry counts
    // as lost (it never completes, as if enqueueing fails halfway) until track or remove, which do not allocate.
    uint64_t begin(uint64_t record, const std::string &description);
    // The entry completes when `word` is at least `value`.
    void track(uint64_t number, const std::atomic<uint64_t> &word, uint64_t value);
    // The completion of the work is tracked elsewhere.
    void remove(uint64_t number);
    // begin, with a completion word of this object. None: all words are in use; try again.
    std::optional<uint64_t> begin_with_word(uint64_t record, const std::string &description);
    // Enqueues the write of the entry's own word. The caller has a CudaDevice::Scope.
    void track(uint64_t number, cuda::Stream stream);
    bool all_done();
    // All entries that are left are lost.
    bool only_lost_left();
    // The record of the oldest entry; 0 if there is none.
    uint64_t first_record();
    // "odc_gather of shard \"a\"; ...": the entries that are left.
    std::string describe();

private:
    struct Entry {
        uint64_t number;
        uint64_t record;
        std::string description;
        const std::atomic<uint64_t> *word;  // NULL: the entry is lost
        uint64_t value;                     // of the word once the work is complete
        std::optional<size_t> own_word;
    };
    void collect();
    Entry &find(uint64_t number);

    const CudaDevice &device_;
    PinnedMemory words_;
    std::mutex mutex_;
    std::vector<size_t> free_;
    std::vector<Entry> entries_;
    uint64_t last_ = 0;
};

}  // namespace odc

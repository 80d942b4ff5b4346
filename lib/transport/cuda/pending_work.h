// SPDX-License-Identifier: Apache-2.0
// What this context has enqueued on streams and not yet seen done: after each operation its stream writes a word, and the
// host reads it. So nobody waits for a stream, and the caller may destroy one with work on it.
#pragma once

#include "transport/cuda/pinned_memory.h"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace odc {

// Safe from several threads.
class PendingWork {
public:
    explicit PendingWork(const CudaDevice &device);

    // What `words` describe is going to be enqueued for the shard of that record. It counts as lost, as what fails halfway
    // is, until one of the three below, which need no memory. Returns its number.
    uint64_t begin(uint64_t record, const std::string &words);
    // It has a word of its own, which will be `value` or more.
    void follow(uint64_t flight, const std::atomic<uint64_t> &word, uint64_t value);
    // Something else tells when it is done.
    void leave(uint64_t flight);
    // The same with a word of these, to be written behind it. None: too many are on their way; ask again.
    std::optional<uint64_t> begin_with_word(uint64_t record, const std::string &words);
    // Enqueues the writing; inside a CudaDevice::Scope.
    void follow(uint64_t flight, cuda::Stream stream);
    bool all_done();
    // Those that are not done never will be.
    bool rest_is_lost();
    // The record of the first that is not done; 0: all are.
    uint64_t awaited();
    // "odc_gather of shard \"a\"; ...": those that are not done.
    std::string under_way();

private:
    struct Flight {
        uint64_t number;
        uint64_t record;
        std::string words;
        const std::atomic<uint64_t> *word;  // NULL: it is lost
        uint64_t value;                     // what it becomes
        std::optional<size_t> own_word;
    };
    void collect();
    Flight &find(uint64_t flight);

    const CudaDevice &device_;
    PinnedMemory words_;
    std::mutex mutex_;
    std::vector<size_t> free_;
    std::vector<Flight> flying_;
    uint64_t last_ = 0;
};

}  // namespace odc

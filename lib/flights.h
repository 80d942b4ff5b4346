// SPDX-License-Identifier: Apache-2.0
// What this context has enqueued on streams and not yet seen done: after each operation its stream writes a word, and the
// host reads it. So nobody waits for a stream, and the caller may destroy one with work on it.
#pragma once

#include "pins.h"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace odc {

// Safe from several threads.
class Flights {
public:
    explicit Flights(const CudaDevice &device);

    // A word for `follow`. None: too many are on their way; ask again.
    std::optional<size_t> reserve();
    // Enqueues it behind what `words` describes; inside a CudaDevice::Scope.
    void follow(size_t word, cuda::Stream stream, const std::string &words);
    bool all_done();
    // Those that are not done never will be.
    bool rest_is_lost();
    // The same of what has a word of its own, which will be `value` or more.
    void follow(const std::atomic<uint64_t> &word, uint64_t value, const std::string &words);
    // Something failed halfway, and what was enqueued before may be under way for ever.
    void lose(const std::string &words);
    // "odc_gather of shard \"a\"; ...": those that are not done.
    std::string under_way();

private:
    struct Flight {
        const std::atomic<uint64_t> *word;  // NULL: it is lost
        uint64_t number;                    // what it becomes
        std::string words;
    };
    std::atomic<uint64_t> *own_words() const { return reinterpret_cast<std::atomic<uint64_t> *>(words_.start()); }
    bool is_own(const std::atomic<uint64_t> *word) const;
    void collect();
    uint64_t add(const std::atomic<uint64_t> *word, const std::string &words);
    void forget(uint64_t number);

    const CudaDevice &device_;
    PinnedMemory words_;
    std::mutex mutex_;
    std::vector<size_t> free_;
    std::vector<Flight> flying_;
    uint64_t last_ = 0;
};

}  // namespace odc

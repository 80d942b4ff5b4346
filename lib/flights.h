// SPDX-License-Identifier: Apache-2.0
// What this context has enqueued on streams and not yet seen done: after each operation its stream writes a word, and the
// host reads it. So nobody waits for a stream, and the caller may destroy one with work on it.
#pragma once

#include "pins.h"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace odc {

// Safe from several threads.
class Flights {
public:
    explicit Flights(const CudaDevice &device);

    // Enqueues the word behind what `words` describes; inside a CudaDevice::Scope. False: too many are on their way; ask
    // again.
    bool follow(cuda::Stream stream, const std::string &words);
    bool all_done();
    // "odc_gather of shard \"a\"; ...": those that are not done.
    std::string under_way();

private:
    struct Flight {
        size_t word;
        uint64_t number;
        std::string words;
    };
    void collect();

    std::atomic<uint64_t> &done(size_t word) const {
        return reinterpret_cast<std::atomic<uint64_t> *>(words_.start())[word];
    }

    const CudaDevice &device_;
    PinnedMemory words_;
    std::mutex mutex_;
    std::vector<size_t> free_;
    std::vector<Flight> flying_;
    uint64_t last_ = 0;
};

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
#include "flights.h"

namespace odc {

namespace {

constexpr size_t kBytes = 4096;
constexpr size_t kWords = kBytes / sizeof(std::atomic<uint64_t>);

}  // namespace

Flights::Flights(const CudaDevice &device) : device_(device), words_(device, kBytes) {
    for (size_t word = 0; word < kWords; ++word) {
        free_.push_back(word);
    }
}

void Flights::collect() {
    std::erase_if(flying_, [this](const Flight &one) {
        const bool there = done(one.word).load(std::memory_order_acquire) == one.number;
        if (there) {
            free_.push_back(one.word);
        }
        return there;
    });
}

bool Flights::follow(cuda::Stream stream, const std::string &words) {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
        collect();
    }
    if (free_.empty()) {
        return false;
    }
    const size_t word = free_.back();
    device_.check(cuda::driver().cuStreamWriteValue64(stream, words_.address() + word * sizeof(uint64_t), last_ + 1,
                                                      cuda::kWriteValueDefault),
                  "cuStreamWriteValue64");
    free_.pop_back();
    flying_.push_back({word, ++last_, words});
    return true;
}

bool Flights::all_done() {
    const std::lock_guard lock(mutex_);
    collect();
    return flying_.empty();
}

std::string Flights::under_way() {
    const std::lock_guard lock(mutex_);
    collect();
    std::vector<std::string> words;
    for (const Flight &one : flying_) {
        words.push_back(one.words);
    }
    return listed(words, "; ");
}

}  // namespace odc

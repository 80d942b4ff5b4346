// SPDX-License-Identifier: Apache-2.0
#include "flights.h"

#include <algorithm>

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

bool Flights::is_own(const std::atomic<uint64_t> *word) const {
    return word >= own_words() && word < own_words() + kWords;
}

void Flights::collect() {
    std::erase_if(flying_, [this](const Flight &one) {
        const bool done = one.word != nullptr && one.word->load(std::memory_order_acquire) >= one.number;
        if (done && is_own(one.word)) {
            free_.push_back(static_cast<size_t>(one.word - own_words()));
        }
        return done;
    });
}

std::optional<size_t> Flights::reserve() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
        collect();
    }
    if (free_.empty()) {
        return std::nullopt;
    }
    const size_t word = free_.back();
    free_.pop_back();
    return word;
}

void Flights::follow(size_t word, cuda::Stream stream, const std::string &words) {
    const uint64_t number = add(own_words() + word, words);
    const cuda::Address address = words_.address() + word * sizeof(uint64_t);
    // Not under the lock: the driver waits where the stream has no room.
    const cuda::Result result = cuda::driver().cuStreamWriteValue64(stream, address, number, cuda::kWriteValueDefault);
    if (result != cuda::Result::Success) {
        forget(number);
        device_.check(result, "cuStreamWriteValue64");
    }
}

uint64_t Flights::add(const std::atomic<uint64_t> *word, const std::string &words) {
    const std::lock_guard lock(mutex_);
    flying_.push_back({word, ++last_, words});
    return last_;
}

void Flights::forget(uint64_t number) {
    const std::lock_guard lock(mutex_);
    std::erase_if(flying_, [&](const Flight &one) { return is_own(one.word) && one.number == number; });
}

void Flights::follow(const std::atomic<uint64_t> &word, uint64_t value, const std::string &words) {
    const std::lock_guard lock(mutex_);
    flying_.push_back({&word, value, words});
}

void Flights::lose(const std::string &words) {
    const std::lock_guard lock(mutex_);
    flying_.push_back({nullptr, 0, words});
}

bool Flights::all_done() {
    const std::lock_guard lock(mutex_);
    collect();
    return flying_.empty();
}

bool Flights::rest_is_lost() {
    const std::lock_guard lock(mutex_);
    collect();
    return std::all_of(flying_.begin(), flying_.end(), [](const Flight &one) { return one.word == nullptr; });
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

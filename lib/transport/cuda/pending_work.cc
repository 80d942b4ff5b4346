// SPDX-License-Identifier: Apache-2.0
#include "transport/cuda/pending_work.h"

#include <algorithm>

namespace odc {

namespace {

constexpr size_t kBytes = 4096;
constexpr size_t kWords = kBytes / sizeof(std::atomic<uint64_t>);

}  // namespace

PendingWork::PendingWork(const CudaDevice &device) : device_(device), words_(device, kBytes) {
    for (size_t word = 0; word < kWords; ++word) {
        free_.push_back(word);
    }
}

void PendingWork::collect() {
    std::erase_if(flying_, [this](const Flight &one) {
        const bool done = one.word != nullptr && one.word->load(std::memory_order_acquire) >= one.value;
        if (done && one.own_word) {
            free_.push_back(*one.own_word);
        }
        return done;
    });
}

PendingWork::Flight &PendingWork::find(uint64_t flight) {
    // It is one of the last.
    return *std::find_if(flying_.rbegin(), flying_.rend(), [&](const Flight &one) { return one.number == flight; });
}

uint64_t PendingWork::begin(uint64_t record, const std::string &words) {
    const std::lock_guard lock(mutex_);
    flying_.push_back({++last_, record, words, nullptr, 0, {}});
    return last_;
}

void PendingWork::follow(uint64_t flight, const std::atomic<uint64_t> &word, uint64_t value) {
    const std::lock_guard lock(mutex_);
    Flight &one = find(flight);
    one.word = &word;
    one.value = value;
}

void PendingWork::leave(uint64_t flight) {
    const std::lock_guard lock(mutex_);
    std::erase_if(flying_, [&](const Flight &one) { return one.number == flight; });
}

std::optional<uint64_t> PendingWork::begin_with_word(uint64_t record, const std::string &words) {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
        collect();
    }
    if (free_.empty()) {
        return std::nullopt;
    }
    flying_.push_back({++last_, record, words, nullptr, 0, free_.back()});
    free_.pop_back();
    return last_;
}

void PendingWork::follow(uint64_t flight, cuda::Stream stream) {
    size_t word = 0;
    {
        const std::lock_guard lock(mutex_);
        word = *find(flight).own_word;
    }
    const cuda::Address address = words_.address() + word * sizeof(uint64_t);
    // Not under the lock: the driver waits where the stream has no room.
    device_.check(cuda::driver().cuStreamWriteValue64(stream, address, flight, cuda::kWriteValueDefault),
                  "cuStreamWriteValue64");
    follow(flight, reinterpret_cast<std::atomic<uint64_t> *>(words_.start())[word], flight);
}

bool PendingWork::all_done() {
    const std::lock_guard lock(mutex_);
    collect();
    return flying_.empty();
}

bool PendingWork::rest_is_lost() {
    const std::lock_guard lock(mutex_);
    collect();
    return std::all_of(flying_.begin(), flying_.end(), [](const Flight &one) { return one.word == nullptr; });
}

uint64_t PendingWork::awaited() {
    const std::lock_guard lock(mutex_);
    collect();
    return flying_.empty() ? 0 : flying_.front().record;
}

std::string PendingWork::under_way() {
    const std::lock_guard lock(mutex_);
    collect();
    std::vector<std::string> words;
    for (const Flight &one : flying_) {
        words.push_back(one.words);
    }
    return listed(words, "; ");
}

}  // namespace odc

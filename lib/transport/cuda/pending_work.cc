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
    std::erase_if(entries_, [this](const Entry &one) {
        const bool done = one.word != nullptr && one.word->load(std::memory_order_acquire) >= one.value;
        if (done && one.own_word) {
            free_.push_back(*one.own_word);
        }
        return done;
    });
}

PendingWork::Entry &PendingWork::find(uint64_t number) {
    // It is one of the newest.
    return *std::find_if(entries_.rbegin(), entries_.rend(), [&](const Entry &one) { return one.number == number; });
}

uint64_t PendingWork::begin(uint64_t record, const std::string &description) {
    const std::lock_guard lock(mutex_);
    entries_.push_back({++last_, record, description, nullptr, 0, {}});
    return last_;
}

void PendingWork::track(uint64_t number, const std::atomic<uint64_t> &word, uint64_t value) {
    const std::lock_guard lock(mutex_);
    Entry &one = find(number);
    one.word = &word;
    one.value = value;
}

void PendingWork::remove(uint64_t number) {
    const std::lock_guard lock(mutex_);
    std::erase_if(entries_, [&](const Entry &one) { return one.number == number; });
}

std::optional<uint64_t> PendingWork::begin_with_word(uint64_t record, const std::string &description) {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
        collect();
    }
    if (free_.empty()) {
        return std::nullopt;
    }
    entries_.push_back({++last_, record, description, nullptr, 0, free_.back()});
    free_.pop_back();
    return last_;
}

void PendingWork::track(uint64_t number, cuda::Stream stream) {
    size_t word = 0;
    {
        const std::lock_guard lock(mutex_);
        word = *find(number).own_word;
    }
    const cuda::Address address = words_.address() + word * sizeof(uint64_t);
    // Not under the lock: the driver blocks while the stream is full.
    device_.check(cuda::driver().cuStreamWriteValue64(stream, address, number, cuda::kWriteValueDefault),
                  "cuStreamWriteValue64");
    track(number, reinterpret_cast<std::atomic<uint64_t> *>(words_.start())[word], number);
}

bool PendingWork::all_done() {
    const std::lock_guard lock(mutex_);
    collect();
    return entries_.empty();
}

bool PendingWork::only_lost_left() {
    const std::lock_guard lock(mutex_);
    collect();
    return std::all_of(entries_.begin(), entries_.end(), [](const Entry &one) { return one.word == nullptr; });
}

uint64_t PendingWork::first_record() {
    const std::lock_guard lock(mutex_);
    collect();
    return entries_.empty() ? 0 : entries_.front().record;
}

std::string PendingWork::describe() {
    const std::lock_guard lock(mutex_);
    collect();
    std::vector<std::string> all;
    for (const Entry &one : entries_) {
        all.push_back(one.description);
    }
    return listed(all, "; ");
}

}  // namespace odc

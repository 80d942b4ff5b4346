// SPDX-License-Identifier: Apache-2.0
#include "flights.h"

#include <sys/mman.h>

namespace odc {

namespace {

constexpr size_t kBytes = 4096;
constexpr size_t kWords = kBytes / sizeof(std::atomic<uint64_t>);

}  // namespace

Flights::Flights(const CudaDevice &device, Pins &pins) : device_(device), pins_(pins) {
    void *page = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        fail_errno("mmap of a page");
    }
    // A forked child has no use for it, and a copy on write would part the GPU from the page.
    madvise(page, kBytes, MADV_DONTFORK);
    done_ = static_cast<std::atomic<uint64_t> *>(page);
    try {
        for (size_t word = 0; word < kWords; ++word) {
            addresses_.push_back(pins_.pin(&done_[word]));
            free_.push_back(word);
        }
    } catch (...) {
        munmap(page, kBytes);
        throw;
    }
}

Flights::~Flights() {
    for (size_t word = 0; word < kWords; ++word) {
        pins_.unpin(&done_[word]);
    }
    munmap(done_, kBytes);
}

void Flights::collect() {
    std::erase_if(flying_, [this](const Flight &one) {
        const bool done = done_[one.word].load(std::memory_order_acquire) == one.number;
        if (done) {
            free_.push_back(one.word);
        }
        return done;
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
    device_.check(cuda::driver().cuStreamWriteValue64(stream, addresses_[word], last_ + 1, cuda::kWriteValueDefault),
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

// SPDX-License-Identifier: Apache-2.0
#include "base/fd.h"

#include <pthread.h>

#include <bit>
#include <cstddef>

namespace odc {

namespace {

// A bitmap of the descriptors to close in children. It needs no lock and no allocation: fork() may happen at any time, and the
// child may only call async-signal-safe functions. Numbers beyond the kernel's default limit (fs.nr_open) are not covered.
constexpr int kMost = 1 << 20;
constexpr int kBits = 64;
constinit std::atomic<uint64_t> enlisted[kMost / kBits];
constinit std::atomic<int> words_in_use = 0;

uint64_t bit_of(int fd) { return uint64_t{1} << (fd % kBits); }
std::atomic<uint64_t> &word_of(int fd) { return enlisted[fd / kBits]; }

[[maybe_unused]] const int kAtFork = pthread_atfork(nullptr, nullptr, &Fd::close_in_child);

}  // namespace

uint32_t Fd::enlist(int fd) {
    if (fd >= 0 && fd < kMost) {
        for (int words = words_in_use.load(); words <= fd / kBits;) {
            words_in_use.compare_exchange_weak(words, fd / kBits + 1);
        }
        word_of(fd).fetch_or(bit_of(fd));
    }
    return forks.load(std::memory_order_relaxed);
}

void Fd::delist(int fd) {
    if (fd < kMost) {
        word_of(fd).fetch_and(~bit_of(fd));
    }
}

void Fd::close_in_child() {
    for (int word = 0; word < words_in_use.load(); ++word) {
        for (uint64_t rest = enlisted[word].exchange(0); rest != 0; rest &= rest - 1) {
            close(word * kBits + std::countr_zero(rest));
        }
    }
    forks.fetch_add(1);
}

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
#include "base/fork_gate.h"

#include <pthread.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>

#include "base/error.h"

namespace odc {

namespace {

constexpr int kMostMs = 5000;
constexpr size_t kKinds = static_cast<size_t>(Locks::Count);
constexpr std::array<const char *, kKinds> kNames = {"libodc", "hwloc", "libsodium", "libfabric",
                                                     "NVML",   "CUDA",  "PMIx"};

// Running fork() calls in the upper half, threads in sections in the lower half: one word, so that entering is one exchange.
constexpr uint64_t kOneFork = uint64_t{1} << 32;
constinit std::atomic<uint64_t> gate = 0;
constinit std::array<std::atomic<int>, kKinds> inside = {};
constinit thread_local std::array<int, kKinds> inside_here = {};
constinit thread_local uint32_t all_here = 0;
constinit std::array<std::atomic<bool>, kKinds> forked_amid = {};

size_t index_of(Locks locks) { return static_cast<size_t>(locks); }

void sleep_1ms() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

void enter() {
    uint64_t seen = gate.load();
    for (int ms = 0;;) {
        if (seen >= kOneFork && all_here == 0 && ms < kMostMs) {
            sleep_1ms();
            ++ms;
            seen = gate.load();
        } else if (gate.compare_exchange_weak(seen, seen + 1)) {
            break;
        }
    }
    ++all_here;
}

void before_fork() {
    gate.fetch_add(kOneFork);
    // A thread that forks inside a section is a library that calls exec; waiting for the others here could deadlock.
    for (int ms = 0; all_here == 0 && ms < kMostMs && gate.load() % kOneFork != 0; ++ms) {
        sleep_1ms();
    }
}

void after_fork() { gate.fetch_sub(kOneFork); }

void after_fork_in_child() {
    gate.store(all_here);
    for (size_t i = 0; i < kKinds; ++i) {
        if (inside[i].exchange(inside_here[i]) > inside_here[i]) {
            forked_amid[i].store(true);
        }
    }
}

[[maybe_unused]] const int kForkHandlers = pthread_atfork(before_fork, after_fork, after_fork_in_child);

}  // namespace

void check_fork(Locks locks) {
    if (forked_amid[index_of(locks)].load(std::memory_order_relaxed)) {
        fail(ODC_ERROR_UNSUPPORTED,
             "another thread was using {} when this process was forked, and holds its locks for ever here; fork before "
             "or after odc_init, or exec",
             kNames[index_of(locks)]);
    }
}

ForkSection::ForkSection(Locks locks) : locks_(locks) {
    enter();
    ++inside_here[index_of(locks_)];
    inside[index_of(locks_)].fetch_add(1);
}

ForkSection::~ForkSection() {
    inside[index_of(locks_)].fetch_sub(1);
    --inside_here[index_of(locks_)];
    --all_here;
    gate.fetch_sub(1);
}

bool others_in_section(Locks locks) { return inside[index_of(locks)].load() != inside_here[index_of(locks)]; }

ProcessLock::ProcessLock(std::mutex &mutex) : section_((check_fork(Locks::Libodc), Locks::Libodc)), lock_(mutex) {}

}  // namespace odc

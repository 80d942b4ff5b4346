// SPDX-License-Identifier: Apache-2.0
// Finds the fastest of several equivalent loops on this machine. The loops take turns at the first pieces of real work, so that
// measuring costs no extra work and no memory.
#pragma once

#include "base/deadline.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace odc {

// Thread-safe. Trivially destructible, for objects that live as long as the process.
class LoopChoice {
public:
    static constexpr int kMostLoops = 4;

    // Loops are numbered from 0 to loops - 1, the simplest first: a later one is chosen only where it is clearly faster.
    explicit constexpr LoopChoice(int loops) : loops_(static_cast<uint32_t>(loops)) {}

    // -1 until all loops have had their turns.
    int chosen() const { return chosen_.load(std::memory_order_relaxed); }

    // Calls run(loop) once, which processes `bytes`, with the chosen loop or the next one to measure. Returns false if the turn
    // does not count: page faults took most of it, as they do in memory that is touched for the first time.
    template <class Run>
    bool run(size_t bytes, const Run &run) {
        if (const int loop = chosen(); loop >= 0) {
            run(loop);
            return true;
        }
        const int loop = next_loop();
        const int64_t faults = page_faults();
        const int64_t begin = now_ns();
        run(loop);
        const int64_t ns = now_ns() - begin;
        if (page_faults() != faults) {
            return false;
        }
        note(loop, bytes, ns);
        return true;
    }

    // The steps of run(): take a turn, note that it processed `bytes` in `ns`. Who notes the last one chooses.
    int next_loop() { return static_cast<int>(turns_.fetch_add(1, std::memory_order_relaxed) % loops_); }
    void note(int loop, size_t bytes, int64_t ns);

    // The speed of `loop` in MB/s that a quarter of its turns exceeded; 0 until more than a quarter are done.
    uint32_t speed(int loop) const;

private:
    static constexpr uint32_t kTurns = 16;  // of each loop

    static int64_t page_faults();  // of this thread

    uint32_t loops_;
    std::atomic<int> chosen_ = -1;
    std::atomic<uint32_t> turns_ = 0;
    std::array<std::atomic<uint32_t>, kMostLoops> noted_ = {};  // turns
    std::array<std::array<std::atomic<uint32_t>, kTurns>, kMostLoops> speeds_ = {};
};

}  // namespace odc

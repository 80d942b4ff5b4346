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
    // does not count, since it had page faults: where memory is touched for the first time they take longer than any loop.
    template <class Run>
    bool run(size_t bytes, const Run &run) {
        if (const int loop = chosen(); loop >= 0) {
            run(loop);
            return true;
        }
        const uint32_t turn = next_turn();
        const int loop = loop_of(turn);
        const int64_t faults = page_faults();
        const int64_t begin = now_ns();
        run(loop);
        const int64_t ns = now_ns() - begin;
        if (page_faults() != faults && turn < kPatience) {
            return false;
        }
        note(loop, bytes, ns);
        return true;
    }

    // The steps of run(): take a turn, find its loop, note that it processed `bytes` in `ns`. Who notes the last one chooses.
    uint32_t next_turn() { return turns_.fetch_add(1, std::memory_order_relaxed); }
    int loop_of(uint32_t turn) const { return static_cast<int>(turn % loops_); }
    void note(int loop, size_t bytes, int64_t ns);

    // The speed of `loop` in MB/s that a quarter of its turns exceeded; 0 until more than a quarter are done.
    uint32_t speed(int loop) const;

private:
    static constexpr uint32_t kTurns = 16;       // of each loop
    static constexpr uint32_t kPatience = 1024;  // from then on turns with page faults count, too

    static int64_t page_faults();  // of this thread

    uint32_t loops_;
    std::atomic<int> chosen_ = -1;
    std::atomic<uint32_t> turns_ = 0;
    std::array<std::atomic<uint32_t>, kMostLoops> noted_ = {};  // turns
    std::atomic<uint32_t> all_noted_ = 0;                       // of them those that are stored
    std::array<std::array<std::atomic<uint32_t>, kTurns>, kMostLoops> speeds_ = {};
};

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// Which of several loops that do the same is fastest on this machine. It is found out during the first pieces of real
// work, which the loops do in turn: so nothing extra is computed or allocated, and the memory is the caller's own.
#pragma once

#include "base/deadline.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace odc {

// Any thread may use it. One that lives as long as the process needs no destructor at exit.
class LoopChoice {
public:
    static constexpr int kMostLoops = 4;

    // Loops are numbered from 0 to loops - 1.
    explicit constexpr LoopChoice(int loops) : loops_(static_cast<uint32_t>(loops)) {}

    // -1 until all loops have had their turns.
    int chosen() const { return chosen_.load(std::memory_order_relaxed); }

    // Calls run(loop), which works through `bytes`, once, with the loop chosen or the next to be tried.
    template <class Run>
    void run(size_t bytes, const Run &run) {
        if (const int loop = chosen(); loop >= 0) {
            run(loop);
            return;
        }
        const uint32_t turn = turns_.fetch_add(1, std::memory_order_relaxed);
        const auto loop = static_cast<int>(turn % loops_);
        const int64_t begin = now_ns();
        run(loop);
        note(turn, bytes, now_ns() - begin);
    }

    // What `loop` reached, in MB/s: what a quarter of its turns exceeded. 0: it has had none.
    uint32_t speed(int loop) const;

private:
    static constexpr uint32_t kTurns = 16;  // of each loop

    void note(uint32_t turn, size_t bytes, int64_t ns);

    uint32_t loops_;
    std::atomic<int> chosen_ = -1;
    std::atomic<uint32_t> turns_ = 0;
    std::array<std::array<std::atomic<uint32_t>, kTurns>, kMostLoops> speeds_ = {};
};

}  // namespace odc

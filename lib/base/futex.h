// SPDX-License-Identifier: Apache-2.0
// Sleeping on a 32-bit word of shared memory until another rank changes it.
#pragma once

#include <atomic>
#include <cstdint>

namespace odc {

// Sleeps while `word` holds `seen`, for `milliseconds` at most; may return early.
void futex_wait(std::atomic<uint32_t> &word, uint32_t seen, int milliseconds);
// Wakes every sleeper.
void futex_wake(std::atomic<uint32_t> &word);

// Tells the processor that this is a spin loop.
inline void spin_pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace odc

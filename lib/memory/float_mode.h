// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cfenv>
#include <cstdint>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace odc {

// While it lives, this thread rounds to nearest, keeps subnormal numbers and traps nothing, whatever its program has set
// (torch.set_flush_denormal, fesetround). What is computed meanwhile stands in a function that the compiler does not inline.
class DefaultFloatMode {
public:
    DefaultFloatMode() : before_(read()) {
        if (!is_default(before_)) {
            set_default();
        }
    }
    ~DefaultFloatMode() {
        if (!is_default(before_)) {
            write(before_);
        }
    }
    DefaultFloatMode(const DefaultFloatMode &) = delete;
    DefaultFloatMode &operator=(const DefaultFloatMode &) = delete;

private:
#if defined(__SSE2__)
    using Word = uint32_t;  // MXCSR
    static constexpr Word kDefault = 0x1f80;
    static constexpr Word kRaised = 0x3f;  // what has happened, no mode
    static Word read() { return _mm_getcsr(); }
    static void write(Word word) { _mm_setcsr(word); }
    static void set_default() { write(kDefault); }
    static bool is_default(Word word) { return (word & ~kRaised) == kDefault; }
#elif defined(__aarch64__)
    using Word = uint64_t;  // FPCR
    static constexpr Word kDefault = 0;
    static Word read() {
        Word word;
        asm volatile("mrs %0, fpcr" : "=r"(word));
        return word;
    }
    static void write(Word word) { asm volatile("msr fpcr, %0" : : "r"(word)); }
    static void set_default() { write(kDefault); }
    static bool is_default(Word word) { return word == kDefault; }
#else  // by the C library, which takes longer
    using Word = std::fenv_t;
    static Word read() {
        Word word;
        std::fegetenv(&word);
        return word;
    }
    static void write(const Word &word) { std::fesetenv(&word); }
    static void set_default() { std::fesetenv(FE_DFL_ENV); }
    static bool is_default(const Word &) { return false; }
#endif

    Word before_;
};

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// Bare copies and additions. Each loop is compiled for several instruction sets, one of which is chosen at run time. Unrolled
// four times, copies were as fast and additions of 64 MiB 5 % slower (Intel, AVX-512).
#include "bench/limit.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace odc_tool {

namespace {

// ---- Non-temporal copies ----

using CopyLoop = void (*)(std::byte *to, const std::byte *from, size_t bytes);

void copy_plain(std::byte *to, const std::byte *from, size_t bytes) { std::memcpy(to, from, bytes); }

#if defined(__x86_64__)

// Whole cache lines; `to` is aligned to one. The destination's lines are written without being read first.
void stream_sse2(std::byte *to, const std::byte *from, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) {
        for (size_t j = i; j < i + 64; j += 16) {
            const __m128i value = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from + j));
            _mm_stream_si128(reinterpret_cast<__m128i *>(to + j), value);
        }
    }
}

[[gnu::target("avx2")]] void stream_avx2(std::byte *to, const std::byte *from, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) {
        for (size_t j = i; j < i + 64; j += 32) {
            const __m256i value = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from + j));
            _mm256_stream_si256(reinterpret_cast<__m256i *>(to + j), value);
        }
    }
}

[[gnu::target("avx512f")]] void stream_avx512(std::byte *to, const std::byte *from, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) {
        const __m512i value = _mm512_loadu_si512(from + i);
        _mm512_stream_si512(reinterpret_cast<__m512i *>(to + i), value);
    }
}

template <CopyLoop stream>
void copy_stream(std::byte *to, const std::byte *from, size_t bytes) {
    const size_t to_line = (64 - reinterpret_cast<uintptr_t>(to) % 64) % 64;
    const size_t head = std::min(to_line, bytes);
    const size_t lines = (bytes - head) / 64 * 64;
    std::memcpy(to, from, head);
    stream(to + head, from + head, lines);
    std::memcpy(to + head + lines, from + head + lines, bytes - head - lines);
    _mm_sfence();
}

CopyLoop choose_non_temporal() {
    if (__builtin_cpu_supports("avx512f")) {
        return copy_stream<stream_avx512>;
    }
    return __builtin_cpu_supports("avx2") ? copy_stream<stream_avx2> : copy_stream<stream_sse2>;
}

void pause() { _mm_pause(); }

#else

CopyLoop choose_non_temporal() { return copy_plain; }

void pause() { std::atomic_signal_fence(std::memory_order_seq_cst); }

#endif

// ---- Additions ----

// The loops are plain, for the compiler to vectorize; GCC must be told to, and to use the whole width.
#if defined(__clang__)
#define ODC_BENCH_AVX2 gnu::target("avx2")
#define ODC_BENCH_AVX512 gnu::target("avx512f,avx512bw,avx512vl")
#else
#define ODC_BENCH_AVX2 gnu::target("avx2"), gnu::optimize("O3")
#define ODC_BENCH_AVX512 gnu::target("avx512f,avx512bw,avx512vl,prefer-vector-width=512"), gnu::optimize("O3")
#endif

// The element types, with their conversions to the sum's type.
struct F32 {
    using Value = float;
    using Sum = float;
    [[gnu::always_inline]] static Sum widen(Value value) { return value; }
};

struct F64 {
    using Value = double;
    using Sum = double;
    [[gnu::always_inline]] static Sum widen(Value value) { return value; }
};

struct Bf16 {
    using Value = uint16_t;
    using Sum = float;
    [[gnu::always_inline]] static Sum widen(Value value) { return __builtin_bit_cast(float, uint32_t{value} << 16); }
};

struct F16 {
    using Value = uint16_t;
    using Sum = float;
    // Moves the exponent into place and corrects its bias by a multiplication, which is exact for all finite values.
    [[gnu::always_inline]] static Sum widen(Value value) {
        const uint32_t word = value;
        const float magnitude = __builtin_bit_cast(float, (word & 0x7fff) << 13) * 0x1p112F;
        return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, magnitude) | (word & 0x8000) << 16);
    }
};

template <class Type>
[[gnu::always_inline]] inline void add_loop(void *sums, const void *values, uint64_t numel) {
    auto *__restrict sum = static_cast<typename Type::Sum *>(sums);
    const auto *__restrict value = static_cast<const typename Type::Value *>(values);
    for (uint64_t i = 0; i < numel; ++i) {
        sum[i] += Type::widen(value[i]);
    }
}

using AddLoop = void (*)(void *sums, const void *values, uint64_t numel);

template <class Type>
void add_baseline(void *sums, const void *values, uint64_t numel) {
    add_loop<Type>(sums, values, numel);
}

#if defined(__x86_64__)

template <class Type>
[[ODC_BENCH_AVX2]] void add_avx2(void *sums, const void *values, uint64_t numel) {
    add_loop<Type>(sums, values, numel);
}

template <class Type>
[[ODC_BENCH_AVX512]] void add_avx512(void *sums, const void *values, uint64_t numel) {
    add_loop<Type>(sums, values, numel);
}

// Compilers do not use the instruction that widens f16.
template <>
[[ODC_BENCH_AVX512]] void add_avx512<F16>(void *sums, const void *values, uint64_t numel) {
    auto *sum = static_cast<float *>(sums);
    const auto *value = static_cast<const uint16_t *>(values);
    uint64_t i = 0;
    for (; i + 16 <= numel; i += 16) {
        const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(value + i));
        _mm512_storeu_ps(sum + i, _mm512_add_ps(_mm512_loadu_ps(sum + i), _mm512_maskz_cvtph_ps(0xffff, half)));
    }
    add_loop<F16>(sum + i, value + i, numel - i);
}

template <class Type>
AddLoop choose_add() {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
        return add_avx512<Type>;
    }
    return __builtin_cpu_supports("avx2") ? add_avx2<Type> : add_baseline<Type>;
}

#else

template <class Type>
AddLoop choose_add() {
    return add_baseline<Type>;
}

#endif

AddLoop add_loop_of(odc_type type) {
    static const AddLoop f32 = choose_add<F32>();
    static const AddLoop f64 = choose_add<F64>();
    static const AddLoop bf16 = choose_add<Bf16>();
    static const AddLoop f16 = choose_add<F16>();
    switch (type) {
        case ODC_F32: return f32;
        case ODC_F64: return f64;
        case ODC_BF16: return bf16;
        case ODC_F16: return f16;
        case ODC_BYTES: break;
    }
    return nullptr;
}

// ---- Exact additions ----

constexpr double kScale = 0x1p41;
constexpr double kMost = 0x1p51 - 1;
constexpr double kRounder = 0x1.8p52;  // leaves an integer in the low bits

using ExactLoop = void (*)(int64_t *sums, const void *values, uint64_t numel);

template <class Type>
void add_exactly(int64_t *__restrict sums, const void *values, uint64_t numel) {
    const auto *__restrict value = static_cast<const typename Type::Value *>(values);
    for (uint64_t i = 0; i < numel; ++i) {
        const double units = static_cast<double>(Type::widen(value[i])) * kScale;
        const double addend = std::max(std::min(units, kMost), -kMost);
        sums[i] += __builtin_bit_cast(int64_t, addend + kRounder) - __builtin_bit_cast(int64_t, kRounder);
    }
}

#if defined(__x86_64__)

// By hand: as GCC 12 compiles the plain loop for AVX2 it takes twice as long.
template <class Type>
[[gnu::target("avx2,f16c")]] void add_exactly_avx2(int64_t *sums, const void *values, uint64_t numel) {
    const auto *value = static_cast<const typename Type::Value *>(values);
    const __m256d rounder = _mm256_set1_pd(kRounder);
    uint64_t i = 0;
    for (; i + 4 <= numel; i += 4) {
        __m128 wide;
        if constexpr (std::is_same_v<Type, F32>) {
            wide = _mm_loadu_ps(value + i);
        } else {
            const __m128i half = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(value + i));
            wide = std::is_same_v<Type, F16> ? _mm_cvtph_ps(half)
                                             : _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(half), 16));
        }
        const __m256d units = _mm256_mul_pd(_mm256_cvtps_pd(wide), _mm256_set1_pd(kScale));
        const __m256d addend = _mm256_max_pd(_mm256_min_pd(units, _mm256_set1_pd(kMost)), _mm256_set1_pd(-kMost));
        const __m256i whole =
            _mm256_sub_epi64(_mm256_castpd_si256(_mm256_add_pd(addend, rounder)), _mm256_castpd_si256(rounder));
        auto *sum = reinterpret_cast<__m256i *>(sums + i);
        _mm256_storeu_si256(sum, _mm256_add_epi64(_mm256_loadu_si256(sum), whole));
    }
    add_exactly<Type>(sums + i, value + i, numel - i);
}

// Masks of all ones: GCC 12 warns of the forms without.
template <class Type>
[[gnu::target("avx512f,f16c")]] void add_exactly_avx512(int64_t *sums, const void *values, uint64_t numel) {
    const auto *value = static_cast<const typename Type::Value *>(values);
    const __m512d rounder = _mm512_set1_pd(kRounder);
    uint64_t i = 0;
    for (; i + 8 <= numel; i += 8) {
        __m256 wide;
        if constexpr (std::is_same_v<Type, F32>) {
            wide = _mm256_loadu_ps(value + i);
        } else {
            const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i *>(value + i));
            wide = std::is_same_v<Type, F16> ? _mm256_cvtph_ps(half)
                                             : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
        }
        const __m512d units = _mm512_mul_pd(_mm512_maskz_cvtps_pd(0xff, wide), _mm512_set1_pd(kScale));
        const __m512d addend =
            _mm512_maskz_max_pd(0xff, _mm512_maskz_min_pd(0xff, units, _mm512_set1_pd(kMost)), _mm512_set1_pd(-kMost));
        const __m512i whole =
            _mm512_sub_epi64(_mm512_castpd_si512(_mm512_add_pd(addend, rounder)), _mm512_castpd_si512(rounder));
        _mm512_storeu_si512(sums + i, _mm512_add_epi64(_mm512_loadu_si512(sums + i), whole));
    }
    add_exactly<Type>(sums + i, value + i, numel - i);
}

template <class Type>
ExactLoop choose_exact() {
    // Both widen f16 on every processor, though F16C has a bit of its own.
    if (__builtin_cpu_supports("avx512f")) {
        return add_exactly_avx512<Type>;
    }
    return __builtin_cpu_supports("avx2") ? add_exactly_avx2<Type> : add_exactly<Type>;
}

#else

template <class Type>
ExactLoop choose_exact() {
    return add_exactly<Type>;
}

#endif

ExactLoop exact_loop_of(odc_type type) {
    static const ExactLoop f32 = choose_exact<F32>();
    static const ExactLoop bf16 = choose_exact<Bf16>();
    static const ExactLoop f16 = choose_exact<F16>();
    return type == ODC_F32 ? f32 : type == ODC_BF16 ? bf16 : f16;
}

void lock(BareLock &lock) {
    // The lock is held for microseconds, unless its holder was descheduled: then yielding helps.
    for (int tries = 0; lock.held.exchange(1, std::memory_order_acquire) != 0; ++tries) {
        for (int spins = 0; spins < 200 && lock.held.load(std::memory_order_relaxed) != 0; ++spins) {
            pause();
        }
        if (tries > 10) {
            sched_yield();
        }
    }
}

void unlock(BareLock &lock) { lock.held.store(0, std::memory_order_release); }

}  // namespace

const char *copy_name(Copy copy) { return copy == Copy::Memcpy ? "memcpy" : "non-temporal copy"; }

void bare_copy(Copy copy, void *to, const void *from, size_t bytes) {
    static const CopyLoop non_temporal = choose_non_temporal();
    const CopyLoop loop = copy == Copy::Memcpy ? copy_plain : non_temporal;
    loop(static_cast<std::byte *>(to), static_cast<const std::byte *>(from), bytes);
}

size_t element_bytes(odc_type type) {
    switch (type) {
        case ODC_F32: return 4;
        case ODC_F64: return 8;
        case ODC_BF16:
        case ODC_F16: return 2;
        case ODC_BYTES: break;
    }
    return 1;
}

odc_type accumulator_of(odc_type gradient_type) { return gradient_type == ODC_F64 ? ODC_F64 : ODC_F32; }

namespace {

// Calls add(first element, elements) for one stripe after the other under its lock.
template <class Add>
void by_stripe(uint64_t numel, BareLock *locks, uint64_t stripe_elements, const Add &add) {
    for (uint64_t first = 0, stripe = 0; first < numel; first += stripe_elements, ++stripe) {
        lock(locks[stripe]);
        add(first, std::min(stripe_elements, numel - first));
        unlock(locks[stripe]);
    }
}

}  // namespace

void bare_locked_add(odc_type type, void *sums, const void *values, uint64_t numel, BareLock *locks,
                     uint64_t stripe_elements) {
    const AddLoop add = add_loop_of(type);
    const size_t value_bytes = element_bytes(type);
    const size_t sum_bytes = element_bytes(accumulator_of(type));
    by_stripe(numel, locks, stripe_elements, [&](uint64_t first, uint64_t count) {
        add(static_cast<std::byte *>(sums) + first * sum_bytes,
            static_cast<const std::byte *>(values) + first * value_bytes, count);
    });
}

void bare_locked_add_exactly(odc_type type, int64_t *sums, const void *values, uint64_t numel, BareLock *locks,
                             uint64_t stripe_elements) {
    const ExactLoop add = exact_loop_of(type);
    const size_t value_bytes = element_bytes(type);
    by_stripe(numel, locks, stripe_elements, [&](uint64_t first, uint64_t count) {
        add(sums + first, static_cast<const std::byte *>(values) + first * value_bytes, count);
    });
}

}  // namespace odc_tool

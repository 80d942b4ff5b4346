// SPDX-License-Identifier: Apache-2.0
// The kernels of exact sums (memory/exact_sum.h), as templates like those of add.h: they add gradients to a slice's sums, add
// sums that were made in host memory, and make f32 of sums in place.
#pragma once

#include "memory/exact_sum.h"
#include "transport/cuda/kernels/add.h"

namespace odc {

// Behind the sums of a slice, zeroed with them. A bit for each sum follows, the last one's first, so that a sum's distance from here
// tells which: 1 where a NaN or an infinity was added.
struct ExactTotals {
    unsigned long long clamped;     // addends of 2^exponent or more, added as the largest of their sign
    unsigned long long not_finite;  // addends
    unsigned long long additions;   // to each sum
    unsigned long long
        largest;  // finite magnitude in units, rounded: bits of a double, which are in the order of the numbers
};

// Bytes of the totals and the bits behind `numel` sums.
constexpr unsigned long long exact_totals_bytes(unsigned long long numel) {
    return sizeof(ExactTotals) + (numel + 63) / 64 * 8;
}

struct ExactAddend : Addend {      // `to`: of sums, long long
    ExactTotals *totals;           // behind the slice's sums
    unsigned long long additions;  // that it counts for: 0 for all parts of an addition but one
};

constexpr unsigned kMostExactParts = 96;

// As Addends.
struct ExactAddends {
    ExactAddend addends[kMostExactParts];
    unsigned count;
    unsigned first;
    double scale;  // units in 1; not used for sums
};
static_assert(sizeof(ExactAddends) <= 4096, "the largest kernel parameters of all GPUs");

template <class To, class From>
ODC_HOST_DEVICE To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to{};
    std::memcpy(&to, &from, sizeof(to));
    return to;
}

// Where a slice keeps that a sum is not finite.
struct NotFiniteBit {
    ODC_HOST_DEVICE NotFiniteBit(ExactTotals *totals, const long long *sum) {
        const auto distance = static_cast<unsigned long long>(reinterpret_cast<const long long *>(totals) - 1 - sum);
        word = reinterpret_cast<unsigned *>(totals + 1) + distance / 32;
        bit = 1U << distance % 32;
    }
    ODC_HOST_DEVICE bool is_set() const { return (*word & bit) != 0; }
    unsigned *word;
    unsigned bit;
};

// The Reduce of an addend. Atomics has add(to, value), raise(to, value) to a maximum, set(word, bits), and add_of_warp(to, count),
// which adds what the threads of a warp hand it by one reduction at most: a gradient may be NaN from end to end.
template <class Atomics>
class ExactReduce {
public:
    static constexpr unsigned kWidth = 1;

    ODC_HOST_DEVICE ExactReduce(ExactTotals *totals, double scale) : totals_(totals), scale_(scale) {}

    ODC_HOST_DEVICE void one(long long *to, float gradient) {
        const double exact = static_cast<double>(gradient) * scale_;
        const double clamped = exact > kLargestAddend    ? kLargestAddend
                               : exact < -kLargestAddend ? -kLargestAddend
                                                         : exact;
        if (exact != clamped || exact != exact) {
            if (exact - exact != 0) {
                mark(to);
                return;
            }
            ++clamped_;
        }
        add(to, same_bits<long long>(clamped + kExactRounder) - same_bits<long long>(kExactRounder));
    }
    ODC_HOST_DEVICE void one(long long *to, long long sum) { sum == kNotFinite ? mark(to) : add(to, sum); }
    ODC_HOST_DEVICE void finish() const {
        Atomics::add_of_warp(&totals_->clamped, clamped_);
        Atomics::add_of_warp(&totals_->not_finite, not_finite_);
    }

private:
    static ODC_HOST_DEVICE void add(long long *to, long long value) {
        Atomics::add(reinterpret_cast<unsigned long long *>(to), static_cast<unsigned long long>(value));
    }
    ODC_HOST_DEVICE void mark(const long long *to) {
        const NotFiniteBit place(totals_, to);
        Atomics::set(place.word, place.bit);
        ++not_finite_;
    }

    ExactTotals *totals_;
    double scale_;
    unsigned clamped_ = 0;
    unsigned not_finite_ = 0;
};

// As add(). Gradient long long: sums of host memory.
template <class Gradient, class Atomics>
ODC_HOST_DEVICE void add_exactly(const ExactAddends &additions, unsigned block, unsigned blocks, unsigned thread,
                                 unsigned threads) {
    for (unsigned i = thread; block == 0 && i < additions.count; i += threads) {
        Atomics::add(&additions.addends[i].totals->additions, additions.addends[i].additions);
    }
    const auto reduce_of = [&](const ExactAddend &addend) {
        return ExactReduce<Atomics>(addend.totals, additions.scale);
    };
    add_all<Gradient, long long>(additions, reduce_of, block, blocks, thread, threads);
}

// ---- f32 of sums, in place ----

// The sums begin ≤ i < end of a slice. An f32 is written where sum i / 2 was, so they come in waves, each complete before the
// next: the first is one tile, whose threads all read before one writes; after it `end` is at most 2 * `begin`.
struct ExactWave {
    long long *sums;  // of the slice
    ExactTotals *totals;
    unsigned long long begin;
    unsigned long long end;
    double unit;
};

constexpr unsigned kConvertEach = 8;  // sums of a tile per thread
constexpr unsigned kConvertTile = kConvertEach * kAddThreads;

// The wave before the first one of a slice, and the one after a wave; none is left if it is empty.
inline ExactWave before_waves(long long *sums, ExactTotals *totals, double unit) { return {sums, totals, 0, 0, unit}; }
inline ExactWave next_wave(const ExactWave &wave, unsigned long long numel) {
    const unsigned long long most = wave.end == 0 ? kConvertTile : 2 * wave.end;
    return {wave.sums, wave.totals, wave.end, most < numel ? most : numel, wave.unit};
}

// Rounding to f64 first must not decide a tie of f32. So of large numbers the lowest bits, which f32 has no use for, become one
// that says whether any was set, and 53 bits are left.
ODC_HOST_DEVICE long long without_lowest_bits(long long sum) {
    return (sum & ~0x3ffLL) | (((sum & 0x3ff) + 0x3ff) & 0x400);
}

ODC_HOST_DEVICE float exact_to_f32(long long sum, double rounded, double unit) {
    const bool is_large = rounded > 0x1p52 || rounded < -0x1p52;
    const double scaled = (is_large ? static_cast<double>(without_lowest_bits(sum)) : rounded) * unit;
    constexpr double kTooLarge = 0x1.ffffffp127;  // would round to infinity
    return scaled >= kTooLarge || scaled <= -kTooLarge ? float_of(0x7fc00000) : static_cast<float>(scaled);
}

// Element `k` of a thread in a tile.
ODC_HOST_DEVICE unsigned long long wave_element(const ExactWave &wave, unsigned long long tile, unsigned k,
                                                unsigned thread, unsigned threads) {
    return wave.begin + (tile * kConvertEach + k) * threads + thread;
}

ODC_HOST_DEVICE unsigned long long wave_tiles(const ExactWave &wave, unsigned threads) {
    const unsigned each = kConvertEach * threads;
    return (wave.end - wave.begin + each - 1) / each;
}

// A thread's sums of a tile in f32. Returns the larger of `largest` and their magnitudes.
ODC_HOST_DEVICE double read_tile(const ExactWave &wave, unsigned long long tile, unsigned thread, unsigned threads,
                                 float (&values)[kConvertEach], double largest) {
    const bool any_not_finite = wave.totals->not_finite != 0;
    long long sums[kConvertEach];  // all loads first, so that they are in flight together
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (unsigned k = 0; k < kConvertEach; ++k) {
        const unsigned long long i = wave_element(wave, tile, k, thread, threads);
        sums[k] = i < wave.end ? wave.sums[i] : 0;
    }
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (unsigned k = 0; k < kConvertEach; ++k) {
        const unsigned long long i = wave_element(wave, tile, k, thread, threads);
        if (any_not_finite && i < wave.end && NotFiniteBit(wave.totals, wave.sums + i).is_set()) {
            values[k] = float_of(0x7fc00000);
            continue;
        }
        const auto rounded = static_cast<double>(sums[k]);
        const double magnitude = rounded < 0 ? -rounded : rounded;
        largest = magnitude > largest ? magnitude : largest;
        values[k] = exact_to_f32(sums[k], rounded, wave.unit);
    }
    return largest;
}

// On the CPU, memory that is read as int64 is not written as float.
ODC_HOST_DEVICE void store(float *to, float value) {
#ifdef __CUDA_ARCH__
    *to = value;
#else
    std::memcpy(to, &value, sizeof(value));
#endif
}

ODC_HOST_DEVICE void write_tile(const ExactWave &wave, unsigned long long tile, unsigned thread, unsigned threads,
                                const float (&values)[kConvertEach]) {
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (unsigned k = 0; k < kConvertEach; ++k) {
        if (const unsigned long long i = wave_element(wave, tile, k, thread, threads); i < wave.end) {
            store(reinterpret_cast<float *>(wave.sums) + i, values[k]);
        }
    }
}

template <class Atomics>
ODC_HOST_DEVICE void note_largest(const ExactWave &wave, double largest) {
    if (largest > 0) {
        Atomics::raise(&wave.totals->largest, same_bits<unsigned long long>(largest));
    }
}

}  // namespace odc

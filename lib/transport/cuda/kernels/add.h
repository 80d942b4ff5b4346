// SPDX-License-Identifier: Apache-2.0
// The kernel that adds a gradient into the owners' accumulators, as a template: add.cu instantiates it for GPUs, tests run it
// on the CPU. So this compiles as CUDA and as plain C++20.
#pragma once

#include <cassert>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define ODC_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define ODC_HOST_DEVICE inline
#endif

namespace odc {

// One owner's part of a gradient, and its accumulator.
struct Addend {
    const void *from;          // the gradient; any alignment
    void *to;                  // the accumulator, aligned to its elements
    unsigned long long numel;  // elements of both; may be 0
};

constexpr unsigned kMostAddends = 128;

// The kernels' one parameter. They begin with the addend `first` (less than `count`, unless that is 0) and wrap around, so that
// ranks add to different owners at any one time.
struct Addends {
    Addend addends[kMostAddends];
    unsigned count;
    unsigned first;
};
static_assert(sizeof(Addends) <= 4096, "the largest kernel parameters of all GPUs");

// Threads per block; kernels can be launched with fewer. Any number of blocks works; those beyond the sum of add_tiles() are
// idle.
constexpr unsigned kAddThreads = 512;
// Accumulators in a tile, 16 to a thread. Blocks take tiles in turn.
constexpr unsigned kAddTile = 16 * kAddThreads;
// Loads in flight per thread. With 2,048 threads per multiprocessor, which the kernels' registers allow, that is 64 KiB of
// f32 in flight; memory of 4.8 TB/s and 0.8 µs latency needs 29 KB on each of 132 multiprocessors.
constexpr unsigned kAddInFlight = 4;

struct Bfloat16 {
    uint16_t bits;
};
struct Float16 {
    uint16_t bits;
};

ODC_HOST_DEVICE float float_of(uint32_t bits) {
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

ODC_HOST_DEVICE float widen(float value) { return value; }
ODC_HOST_DEVICE double widen(double value) { return value; }
ODC_HOST_DEVICE long long widen(long long value) { return value; }
// A bf16 is the upper half of an f32.
ODC_HOST_DEVICE float widen(Bfloat16 value) { return float_of(uint32_t{value.bits} << 16); }
ODC_HOST_DEVICE float widen(Float16 value) {
    const uint32_t magnitude = value.bits & 0x7fffU;
    const uint32_t sign = (value.bits & 0x8000U) << 16;
    if (magnitude < 0x400) {  // subnormal or zero
        const float small = static_cast<float>(magnitude) * 0x1p-24F;
        return sign != 0 ? -small : small;
    }
    // The exponent's bias grows by 112; the highest exponent (infinity, NaN) grows by 224.
    constexpr uint32_t kBias = uint32_t{112} << 23;
    const uint32_t finite = (magnitude << 13) + kBias;
    return float_of(sign | (magnitude < 0x7c00 ? finite : finite + kBias));
}

// kBytes of consecutive elements, the lowest address in the lowest bits.
template <unsigned kBytes>
struct Bits {
    uint32_t words[(kBytes + 3) / 4];
};

// One load of kUnit bytes, aligned to kUnit.
template <unsigned kUnit>
ODC_HOST_DEVICE Bits<kUnit> load_unit(uintptr_t address) {
#ifdef __CUDA_ARCH__
    // The read-only path is fine, as nobody writes gradients meanwhile.
    if constexpr (kUnit == 16) {
        const uint4 loaded = __ldg(reinterpret_cast<const uint4 *>(address));
        return {{loaded.x, loaded.y, loaded.z, loaded.w}};
    } else if constexpr (kUnit == 8) {
        const uint2 loaded = __ldg(reinterpret_cast<const uint2 *>(address));
        return {{loaded.x, loaded.y}};
    } else if constexpr (kUnit == 4) {
        return {{__ldg(reinterpret_cast<const unsigned *>(address))}};
    } else if constexpr (kUnit == 2) {
        return {{__ldg(reinterpret_cast<const unsigned short *>(address))}};
    } else {
        return {{__ldg(reinterpret_cast<const unsigned char *>(address))}};
    }
#else
    assert(address % kUnit == 0);
    Bits<kUnit> bits{};
    std::memcpy(bits.words, reinterpret_cast<const void *>(address), kUnit);
    return bits;
#endif
}

// kBytes by loads of kUnit bytes.
template <unsigned kBytes, unsigned kUnit>
ODC_HOST_DEVICE Bits<kBytes> load(uintptr_t address) {
    if constexpr (kBytes == kUnit) {
        return load_unit<kUnit>(address);
    } else {
        static_assert(kUnit <= 4 && kBytes % kUnit == 0);
        Bits<kBytes> bits{};
        for (unsigned i = 0; i < kBytes; i += kUnit) {
            bits.words[i / 4] |= load_unit<kUnit>(address + i).words[0] << (i % 4 * 8);
        }
        return bits;
    }
}

// Element `i` of the loaded bits, widened.
template <class Gradient, unsigned kBytes>
ODC_HOST_DEVICE auto element(const Bits<kBytes> &bits, unsigned i) {
    Gradient value{};
    if constexpr (sizeof(Gradient) == 2) {
        value.bits = static_cast<uint16_t>(bits.words[i / 2] >> (i % 2 * 16));
    } else {
        std::memcpy(&value, bits.words + i * (sizeof(Gradient) / 4), sizeof(Gradient));
    }
    return widen(value);
}

// A tile's elements are low ≤ i < high, at most kAddTile; `from` and `to` are the addresses of i = 0, which may lie before
// the addend in its first tile.
struct AddTile {
    uintptr_t from;
    uintptr_t to;
    unsigned low;
    unsigned high;
};

// How many elements position 0 of an addend's tiles lies before the addend, so that it begins a 128-byte line of `to`.
template <class Accumulator>
ODC_HOST_DEVICE unsigned add_shift(const Addend &addend) {
    constexpr unsigned kLine = 128 / sizeof(Accumulator);
    return static_cast<unsigned>(reinterpret_cast<uintptr_t>(addend.to) / sizeof(Accumulator) % kLine);
}

// The number of the addend's tiles; the last may be short.
template <class Accumulator>
ODC_HOST_DEVICE unsigned long long add_tiles(const Addend &addend) {
    return addend.numel == 0 ? 0 : (addend.numel + add_shift<Accumulator>(addend) + kAddTile - 1) / kAddTile;
}

// Adds one thread's part of the elements low ≤ i < high of a tile, one by one, by loads of kUnit bytes.
template <class Gradient, class Accumulator, unsigned kUnit, class Reduce>
ODC_HOST_DEVICE void add_singly(Reduce &reduce, const AddTile &tile, unsigned low, unsigned high, unsigned thread,
                                unsigned threads) {
    for (unsigned i = low + thread; i < high; i += threads) {
        const auto bits = load<sizeof(Gradient), kUnit>(tile.from + i * sizeof(Gradient));
        reduce.one(reinterpret_cast<Accumulator *>(tile.to + i * sizeof(Accumulator)), element<Gradient>(bits, 0));
    }
}

// Adds one thread's part of a tile in groups of kWidth elements, by loads of kUnit bytes. Each group takes one reduction. A
// warp's groups are consecutive, so that loads and reductions coalesce: a 16-bit gradient is therefore loaded by 8 bytes, not
// 16.
template <class Gradient, class Accumulator, unsigned kWidth, unsigned kUnit, class Reduce>
ODC_HOST_DEVICE void add_tile(Reduce &reduce, const AddTile &tile, unsigned thread, unsigned threads) {
    constexpr unsigned kBytes = kWidth * sizeof(Gradient);
    // The tile's whole groups; less than a group may be left at either end, where the addend begins or ends.
    const unsigned low = (tile.low + kWidth - 1) / kWidth * kWidth;
    const unsigned high = tile.high / kWidth * kWidth;
    const unsigned step = threads * kWidth;
    for (unsigned begin = low + thread * kWidth; begin < high; begin += step * kAddInFlight) {
        Bits<kBytes> groups[kAddInFlight];  // all loads first, so that they are in flight together
        for (unsigned j = 0; j < kAddInFlight; ++j) {
            if (const unsigned i = begin + j * step; i < high) {
                groups[j] = load<kBytes, kUnit>(tile.from + i * sizeof(Gradient));
            }
        }
        for (unsigned j = 0; j < kAddInFlight; ++j) {
            if (const unsigned i = begin + j * step; i < high) {
                auto *to = reinterpret_cast<Accumulator *>(tile.to + i * sizeof(Accumulator));
                if constexpr (kWidth == 4) {
                    reduce.four(to, element<Gradient>(groups[j], 0), element<Gradient>(groups[j], 1),
                                element<Gradient>(groups[j], 2), element<Gradient>(groups[j], 3));
                } else {
                    reduce.one(to, element<Gradient>(groups[j], 0));
                }
            }
        }
    }
    if constexpr (kWidth > 1) {
        constexpr unsigned kOne = sizeof(Gradient);
        const unsigned head_end = low < tile.high ? low : tile.high;
        const unsigned tail = high > head_end ? high : head_end;
        add_singly<Gradient, Accumulator, kOne>(reduce, tile, tile.low, head_end, thread, threads);
        add_singly<Gradient, Accumulator, kOne>(reduce, tile, tail, tile.high, thread, threads);
    }
}

// The work of one thread of one block; all threads of all blocks together add each element once. `reduce_of`: gives an addend's
// Reduce, which has kWidth (4, or 1 without vector reductions), one(to, value), and four(to, value, value, value, value), which
// is used for f32 if `to` is aligned to 16 bytes; and it may have finish(), which all threads of a block call together behind an
// addend of which the block had a tile. A gradient that is not aligned to its elements is added one by one, which is slow.
template <class Gradient, class Accumulator, class Additions, class ReduceOf>
ODC_HOST_DEVICE void add_all(const Additions &additions, const ReduceOf &reduce_of, unsigned block, unsigned blocks,
                             unsigned thread, unsigned threads) {
    unsigned long long next = block;  // the block's next tile, counted from the first tile of this addend
    for (unsigned n = 0; n < additions.count; ++n) {
        const unsigned after = additions.count - additions.first;
        const auto &addend = additions.addends[n < after ? additions.first + n : n - after];
        auto reduce = reduce_of(addend);
        constexpr unsigned kWidth = sizeof(Accumulator) == 4 ? decltype(reduce)::kWidth : 1;
        constexpr unsigned kGroup = kWidth * sizeof(Gradient);
        const unsigned long long tiles = add_tiles<Accumulator>(addend);
        const unsigned shift = add_shift<Accumulator>(addend);
        const unsigned long long end = addend.numel + shift;
        [[maybe_unused]] const bool has_tile = next < tiles;
        for (; next < tiles; next += blocks) {
            const unsigned long long begin = next * kAddTile;
            const AddTile tile = {reinterpret_cast<uintptr_t>(addend.from) + (begin - shift) * sizeof(Gradient),
                                  reinterpret_cast<uintptr_t>(addend.to) + (begin - shift) * sizeof(Accumulator),
                                  next == 0 ? shift : 0,
                                  end - begin < kAddTile ? static_cast<unsigned>(end - begin) : kAddTile};
            if (tile.from % kGroup == 0) {
                add_tile<Gradient, Accumulator, kWidth, kGroup>(reduce, tile, thread, threads);
            } else if (tile.from % sizeof(Gradient) == 0) {
                add_tile<Gradient, Accumulator, kWidth, sizeof(Gradient)>(reduce, tile, thread, threads);
            } else {
                add_singly<Gradient, Accumulator, 1>(reduce, tile, tile.low, tile.high, thread, threads);
            }
        }
        if constexpr (requires { reduce.finish(); }) {
            if (has_tile) {
                reduce.finish();
            }
        }
        next -= tiles;
    }
}

// The same with reductions that are alike for all addends.
template <class Gradient, class Accumulator, class Reduce>
ODC_HOST_DEVICE void add(const Addends &additions, unsigned block, unsigned blocks, unsigned thread, unsigned threads) {
    const auto reduce_of = [](const Addend &) { return Reduce(); };
    add_all<Gradient, Accumulator>(additions, reduce_of, block, blocks, thread, threads);
}

}  // namespace odc

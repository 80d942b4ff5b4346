// SPDX-License-Identifier: Apache-2.0
// What the add loops share, compiled once per instruction set: include it after <hwy/highway.h> in a file that Highway compiles
// so, within no namespace.
#if defined(ODC_MEMORY_KERNELS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ODC_MEMORY_KERNELS_INL_H
#undef ODC_MEMORY_KERNELS_INL_H
#else
#define ODC_MEMORY_KERNELS_INL_H
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace odc {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The order in which a loop walks through memory. Hardware prefetchers stop at page boundaries.
enum class Walk {
    Line,      // from the first line to the last
    Prefetch,  // the same, prefetching kAheadBytes ahead
    Pages      // several pages in turn, one step in each, so that the hardware prefetches in all of them
};

constexpr size_t kLineBytes = 64;
constexpr size_t kAheadBytes = 1024;
constexpr size_t kPageBytes = 4096;
constexpr size_t kAddPages = 2;

HWY_INLINE void prefetch(const void *from, size_t bytes) {
    for (size_t i = 0; i < bytes; i += kLineBytes) {
        hwy::Prefetch(static_cast<const uint8_t *>(from) + i + kAheadBytes);
    }
}

// One vector of gradients, widened to the type of D.
template <class D>
HWY_INLINE hn::Vec<D> widen(D d, const hn::TFromD<D> *from) {
    return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> widen(D d, const hwy::bfloat16_t *from) {
    // A bf16 is the upper half of an f32.
    const hn::Rebind<uint16_t, D> d16;
    const hn::Rebind<uint32_t, D> d32;
    const auto half = hn::LoadU(d16, reinterpret_cast<const uint16_t *>(from));
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, half)));
}
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || HWY_ARCH_ARM_A64
template <class D>
HWY_INLINE hn::Vec<D> widen(D d, const hwy::float16_t *from) {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, from));
}
#else
// Highway 1.0's emulation converts infinity to 65536, which would hide an overflow of the gradients.
template <class D>
HWY_INLINE hn::Vec<D> widen(D d, const hwy::float16_t *from) {
    const hn::Rebind<uint16_t, D> d16;
    const hn::Rebind<uint32_t, D> d32;
    const hn::Rebind<int32_t, D> di;
    const auto bits = hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const uint16_t *>(from)));
    const auto magnitude = hn::And(bits, hn::Set(d32, 0x7fff));
    const auto sign = hn::ShiftLeft<16>(hn::Xor(bits, magnitude));
    // The exponent's bias grows by 112, from its highest value (infinity, NaN) once more.
    const auto bias = hn::Set(d32, uint32_t{112} << 23);
    const auto normal = hn::Add(hn::ShiftLeft<13>(magnitude), bias);
    const auto finite = hn::Lt(hn::BitCast(di, magnitude), hn::Set(di, 0x7c00));
    const auto large = hn::IfThenElse(hn::RebindMask(d32, finite), normal, hn::Add(normal, bias));
    const auto small = hn::Mul(hn::ConvertTo(d, hn::BitCast(di, magnitude)), hn::Set(d, 0x1p-24F));
    const auto subnormal = hn::Lt(hn::BitCast(di, magnitude), hn::Set(di, 0x400));
    const auto value = hn::IfThenElse(hn::RebindMask(d, subnormal), small, hn::BitCast(d, large));
    return hn::Or(value, hn::BitCast(d, sign));
}
#endif

// Calls one(i) for the vectors that begin at i, in the walk's order; returns where less than a vector is left.
template <Walk kWalk, class Accumulator, class Gradient, class One>
HWY_INLINE size_t for_each_vector(const Accumulator *sums, const Gradient *from, size_t count, size_t lanes,
                                  const One &one) {
    const auto two = [&](size_t i) HWY_ATTR {
        if constexpr (kWalk == Walk::Prefetch) {
            prefetch(sums + i, 2 * lanes * sizeof(Accumulator));
            prefetch(from + i, 2 * lanes * sizeof(Gradient));
        }
        one(i);
        one(i + lanes);
    };
    size_t i = 0;
    if constexpr (kWalk == Walk::Pages) {
        constexpr size_t kPage = kPageBytes / sizeof(Accumulator);
        for (; i + kAddPages * kPage <= count; i += kAddPages * kPage) {
            for (size_t j = 0; j < kPage; j += 2 * lanes) {
                for (size_t page = 0; page < kAddPages; ++page) {
                    two(i + page * kPage + j);
                }
            }
        }
    }
    for (; i + 2 * lanes <= count; i += 2 * lanes) {
        two(i);
    }
    for (; i + lanes <= count; i += lanes) {
        one(i);
    }
    return i;
}

}  // namespace HWY_NAMESPACE
}  // namespace odc
HWY_AFTER_NAMESPACE();
#endif

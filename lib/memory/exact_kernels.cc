// SPDX-License-Identifier: Apache-2.0
#include "memory/exact_kernels.h"

#include <odc/odc.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/element_type.h"
#include "memory/float_mode.h"

// Highway compiles the part below once per instruction set; the dispatch at the end picks one at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "memory/exact_kernels.cc"
#include <hwy/foreach_target.h>

#include "memory/kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace odc {
namespace HWY_NAMESPACE {

using F64 = hn::ScalableTag<double>;
using I64 = hn::RebindToSigned<F64>;
using U64 = hn::RebindToUnsigned<F64>;
using F32 = hn::Rebind<float, F64>;  // half a vector

template <Found kFound, Sum kSum, class Gradient>
class Adder {
public:
    Adder(int64_t *HWY_RESTRICT sums, const Gradient *HWY_RESTRICT from, int exponent)
        : sums_(sums), from_(from), scale_(std::ldexp(1.0, kExactBits - exponent)) {}

    template <Walk kWalk>
    Special add(size_t count) {
        const F64 d;
        const size_t lanes = hn::Lanes(d);
        auto special = hn::Ne(hn::Zero(d), hn::Zero(d));
        const auto one = [&](size_t i) HWY_ATTR { special = hn::Or(special, add_vector(sums_ + i, from_ + i)); };
        const size_t i = for_each_vector<kWalk>(sums_, from_, count, lanes, one);
        if (i < count) {
            // The tail is processed in padded copies, so that no lane outside the buffers is touched.
            Gradient tail_from[HWY_MAX_BYTES / sizeof(int64_t)] = {};
            int64_t tail_sums[HWY_MAX_BYTES / sizeof(int64_t)] = {};
            std::memcpy(tail_from, from_ + i, (count - i) * sizeof(Gradient));
            std::memcpy(tail_sums, sums_ + i, (count - i) * sizeof(int64_t));
            special = hn::Or(special, add_vector(tail_sums, tail_from));
            std::memcpy(sums_ + i, tail_sums, (count - i) * sizeof(int64_t));
        }
        return hn::AllFalse(d, special) ? Special{} : mend(count);
    }

private:
    HWY_INLINE hn::Vec<F64> units(const Gradient *from) const {
        const F64 d;
        return hn::Mul(hn::PromoteTo(d, widen(F32(), from)), hn::Set(d, scale_));
    }

    // Returns where an addend is clamped or not finite.
    HWY_INLINE hn::Mask<F64> add_vector(int64_t *sums, const Gradient *from) const {
        const F64 d;
        const I64 di;
        const auto exact = units(from);
        const auto addend = hn::Max(hn::Min(exact, hn::Set(d, kLargestAddend)), hn::Set(d, -kLargestAddend));
        const auto rounder = hn::Set(d, kExactRounder);
        auto value = hn::Sub(hn::BitCast(di, hn::Add(addend, rounder)), hn::BitCast(di, rounder));
        if constexpr (kSum == Sum::Add) {
            const auto before = hn::LoadU(di, sums);
            value = hn::Add(before, value);
            if constexpr (kFound == Found::Any) {
                const auto not_finite = hn::Set(di, kNotFinite);
                value = hn::IfThenElse(hn::Eq(before, not_finite), not_finite, value);
            }
        }
        hn::StoreU(value, di, sums);
        return hn::Not(hn::Eq(exact, addend));  // not Ne, which need not hold of NaN
    }

    // Counts what is special, which is rare, and marks the sums of what is not finite.
    Special mend(size_t count) {
        const F64 d;
        const size_t lanes = hn::Lanes(d);
        Special special;
        for (size_t i = 0; i < count; i += lanes) {
            const size_t some = HWY_MIN(lanes, count - i);
            Gradient from[HWY_MAX_BYTES / sizeof(int64_t)] = {};
            double values[HWY_MAX_BYTES / sizeof(double)];
            std::memcpy(from, from_ + i, some * sizeof(Gradient));
            hn::StoreU(units(from), d, values);
            for (size_t k = 0; k < some; ++k) {
                if (!std::isfinite(values[k])) {
                    sums_[i + k] = kNotFinite;
                    ++special.not_finite;
                } else if (std::fabs(values[k]) > kLargestAddend) {
                    ++special.clamped;
                }
            }
        }
        return special;
    }

    int64_t *HWY_RESTRICT sums_;
    const Gradient *HWY_RESTRICT from_;
    double scale_;
};

template <Found kFound, Sum kSum, class Gradient>
Special add_by_loop(AddLoop loop, int exponent, int64_t *sums, const void *gradient, size_t count) {
    Adder<kFound, kSum, Gradient> adder(sums, static_cast<const Gradient *>(gradient), exponent);
    switch (loop) {
        case AddLoop::Line: return adder.template add<Walk::Line>(count);
        case AddLoop::Prefetch: return adder.template add<Walk::Prefetch>(count);
        case AddLoop::Pages: return adder.template add<Walk::Pages>(count);
    }
    return {};
}

template <class Gradient>
Special add_typed(AddLoop loop, Sum sum, Found found, int exponent, int64_t *sums, const void *gradient, size_t count) {
    if (sum == Sum::Store) {
        return add_by_loop<Found::Finite, Sum::Store, Gradient>(loop, exponent, sums, gradient, count);
    }
    return found == Found::Any ? add_by_loop<Found::Any, Sum::Add, Gradient>(loop, exponent, sums, gradient, count)
                               : add_by_loop<Found::Finite, Sum::Add, Gradient>(loop, exponent, sums, gradient, count);
}

Special add_exactly_target(AddLoop loop, Sum sum, Found found, int32_t gradient_type, int exponent, int64_t *sums,
                           const void *gradient, size_t count) {
    switch (gradient_type) {
        case ODC_F32: return add_typed<float>(loop, sum, found, exponent, sums, gradient, count);
        case ODC_BF16: return add_typed<hwy::bfloat16_t>(loop, sum, found, exponent, sums, gradient, count);
        case ODC_F16: return add_typed<hwy::float16_t>(loop, sum, found, exponent, sums, gradient, count);
        default: return {};  // checked when the shard was registered
    }
}

// Rounded once, to 53 bits: the upper and the lower half of the bits, each in the fraction of a double, and added.
HWY_INLINE hn::Vec<F64> to_f64(hn::Vec<I64> value) {
    const F64 d;
    const U64 du;
    const auto bits = hn::BitCast(du, value);
    const auto lower = hn::Or(hn::And(bits, hn::Set(du, 0xffffffff)), hn::Set(du, 0x4330000000000000));  // 2^52 +
    const auto upper = hn::Xor(hn::ShiftRight<32>(bits), hn::Set(du, 0x4530000080000000));  // 2^84 + 2^63 +
    return hn::Add(hn::Sub(hn::BitCast(d, upper), hn::Set(d, 0x1p84 + 0x1p63 + 0x1p52)), hn::BitCast(d, lower));
}

// Rounding to f64 first must not decide a tie of f32. So of large numbers the lowest bits, which f32 has no use for, become one
// that says whether any was set, and 53 bits are left.
HWY_INLINE hn::Vec<I64> without_lowest_bits(hn::Vec<I64> value) {
    const I64 di;
    const auto lowest = hn::Set(di, 0x3ff);
    const auto any = hn::And(hn::Add(hn::And(value, lowest), lowest), hn::Set(di, 0x400));
    return hn::Or(hn::AndNot(lowest, value), any);
}

class Converter {
public:
    explicit Converter(int exponent) : unit_(std::ldexp(1.0, exponent - kExactBits)) {}

    // Returns the finite magnitudes.
    HWY_INLINE hn::Vec<F64> convert(float *to, const int64_t *sums) const {
        const F64 d;
        const I64 di;
        const auto value = hn::LoadU(di, sums);
        const auto not_finite = hn::RebindMask(d, hn::Eq(value, hn::Set(di, kNotFinite)));
        const auto rounded = to_f64(value);
        const auto large = hn::Gt(hn::Abs(rounded), hn::Set(d, 0x1p52));
        const auto number = hn::IfThenElse(large, to_f64(without_lowest_bits(value)), rounded);
        const auto scaled = hn::Mul(number, hn::Set(d, unit_));
        const auto too_large = hn::Ge(hn::Abs(scaled), hn::Set(d, 0x1.ffffffp127));  // would round to infinity
        const auto nan = hn::Set(d, std::numeric_limits<double>::quiet_NaN());
        const auto result = hn::IfThenElse(hn::Or(not_finite, too_large), nan, scaled);
        hn::StoreU(hn::DemoteTo(F32(), result), F32(), to);
        return hn::IfThenZeroElse(not_finite, hn::Abs(rounded));
    }

private:
    double unit_;
};

double exact_sums_to_f32_target(void *to, const int64_t *sums, size_t count, int exponent) {
    constexpr size_t kBlock = 512;
    const F64 d;
    const size_t lanes = hn::Lanes(d);
    const Converter converter(exponent);
    auto largest = hn::Zero(d);
    // By way of a block in the cache: memory that is read as int64 is not written as float here.
    float block[kBlock];
    for (size_t done = 0; done < count; done += kBlock) {
        const size_t some = HWY_MIN(kBlock, count - done);
        size_t i = 0;
        for (; i + lanes <= some; i += lanes) {
            largest = hn::Max(largest, converter.convert(block + i, sums + done + i));
        }
        if (i < some) {
            int64_t tail[HWY_MAX_BYTES / sizeof(int64_t)] = {};
            std::memcpy(tail, sums + done + i, (some - i) * sizeof(int64_t));
            largest = hn::Max(largest, converter.convert(block + i, tail));
        }
        std::memcpy(static_cast<std::byte *>(to) + done * sizeof(float), block, some * sizeof(float));
    }
    return hn::GetLane(hn::MaxOfLanes(d, largest));
}

}  // namespace HWY_NAMESPACE
}  // namespace odc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace odc {

HWY_EXPORT(add_exactly_target);
HWY_EXPORT(exact_sums_to_f32_target);

namespace {

constinit LoopChoice exact_f32(std::size(kAddLoops));
constinit LoopChoice exact_bf16(std::size(kAddLoops));
constinit LoopChoice exact_f16(std::size(kAddLoops));

LoopChoice &exact_choice(int32_t gradient_type) {
    return gradient_type == ODC_BF16 ? exact_bf16 : gradient_type == ODC_F16 ? exact_f16 : exact_f32;
}

}  // namespace

Special add_exactly_by(AddLoop loop, Sum sum, Found found, int32_t gradient_type, int exponent, int64_t *sums,
                       const void *gradient, size_t count) {
    const DefaultFloatMode mode;
    return HWY_DYNAMIC_DISPATCH(add_exactly_target)(loop, sum, found, gradient_type, exponent, sums, gradient, count);
}

Special add_exactly(Sum sum, Found found, int32_t gradient_type, int exponent, int64_t *sums, const void *gradient,
                    size_t count, uint64_t slice_numel) {
    Special special;
    run_add_loop(exact_choice(gradient_type), sum, count, count * element_size(gradient_type),
                 slice_numel * sizeof(int64_t), [&](AddLoop loop) {
                     special = add_exactly_by(loop, sum, found, gradient_type, exponent, sums, gradient, count);
                 });
    return special;
}

// A plain loop: the network that the sums come from is slower.
bool add_exact_sums(Sum sum, int64_t *sums, const void *from, size_t count) {
    bool not_finite = false;
    for (size_t i = 0; i < count; ++i) {
        int64_t one = 0;
        std::memcpy(&one, static_cast<const std::byte *>(from) + i * sizeof(one), sizeof(one));
        const int64_t before = sum == Sum::Store ? 0 : sums[i];
        not_finite |= one == kNotFinite;
        sums[i] = one == kNotFinite || before == kNotFinite ? kNotFinite : before + one;
    }
    return not_finite;
}

double exact_sums_to_f32(void *to, const int64_t *sums, size_t count, int exponent) {
    const DefaultFloatMode mode;
    return HWY_DYNAMIC_DISPATCH(exact_sums_to_f32_target)(to, sums, count, exponent);
}

std::string exact_loop_figures() {
    return add_loop_figures("add f32 exactly", exact_f32) + add_loop_figures("add bf16 exactly", exact_bf16) +
           add_loop_figures("add f16 exactly", exact_f16);
}

}  // namespace odc
#endif

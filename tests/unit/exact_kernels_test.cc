// SPDX-License-Identifier: Apache-2.0
// The kernels of exact sums against a model in integers, with every vector instruction set that this processor has.
#include "memory/exact_kernels.h"

#include <hwy/targets.h>
#include <odc/odc.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

extern "C" {
#include <cmocka.h>
}

namespace {

using odc::AddLoop;
using odc::Found;
using odc::Sum;

constexpr int64_t kMost = (int64_t{1} << 51) - 1;
constexpr int kExponents[] = {odc::kLeastExponent, -40, -1, 0, 10, 16, 90, odc::kMostExponent};

template <class Check>
void with_every_target(const Check &check) {
    for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
        hwy::SetSupportedTargetsForTest(target);
        hwy::GetChosenTarget().Update(hwy::SupportedTargets());
        assert_string_equal(odc::vector_target(), hwy::TargetName(target));
        check();
        hwy::SetSupportedTargetsForTest(0);
        hwy::GetChosenTarget().DeInit();
    }
}

// ---- The model ----

// A number from its bits: (-1)^negative * magnitude * 2^exponent.
struct Number {
    bool negative;
    bool finite;
    uint64_t magnitude;
    int exponent;
};

Number number_of(uint32_t bits, int exponent_bits, int fraction_bits) {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const uint64_t fraction = bits & ((uint32_t{1} << fraction_bits) - 1);
    const int exponent = static_cast<int>(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    const bool negative = (bits >> (fraction_bits + exponent_bits) & 1) != 0;
    const uint64_t leading = exponent != 0 ? uint64_t{1} << fraction_bits : 0;
    return {negative, exponent != (1 << exponent_bits) - 1, fraction | leading,
            std::max(exponent, 1) - bias - fraction_bits};
}

Number number_of(int32_t type, uint32_t bits) {
    switch (type) {
        case ODC_BF16: return number_of(bits, 8, 7);
        case ODC_F16: return number_of(bits, 5, 10);
        default: return number_of(bits, 8, 23);
    }
}

// magnitude / 2^shift, to the nearest, ties to even.
uint64_t divided(uint64_t magnitude, int shift) {
    if (shift > 63) {
        return 0;  // all that the tests divide is below 2^63
    }
    const uint64_t below = magnitude >> shift;
    const uint64_t rest = magnitude - (below << shift);
    const uint64_t half = shift > 0 ? uint64_t{1} << (shift - 1) : 1;
    return below + (rest > half || (rest == half && shift > 0 && (below & 1) != 0) ? 1 : 0);
}

struct Addend {
    int64_t units;
    bool clamped;
};

Addend addend_of(const Number &number, int exponent) {
    const int shift = number.exponent - (exponent - 51);
    uint64_t magnitude = 0;
    bool clamped = false;
    if (number.magnitude == 0) {
        return {0, false};
    }
    if (shift < 0) {
        magnitude = divided(number.magnitude, -shift);
    } else {
        clamped = shift > 51 || number.magnitude > static_cast<uint64_t>(kMost) >> shift;
        magnitude = clamped ? static_cast<uint64_t>(kMost) : number.magnitude << shift;
    }
    const auto units = static_cast<int64_t>(magnitude);
    return {number.negative ? -units : units, clamped};
}

float f32_of(int64_t sum, int exponent) {
    if (sum == odc::kNotFinite) {
        return std::nanf("");
    }
    const int unit = exponent - 51;
    const uint64_t magnitude = sum < 0 ? -static_cast<uint64_t>(sum) : static_cast<uint64_t>(sum);
    if (magnitude == 0) {
        return 0;
    }
    const int top = 63 - __builtin_clzll(magnitude) + unit;
    const int last = std::max(top - 23, -149);
    const double value = last > unit ? std::ldexp(static_cast<double>(divided(magnitude, last - unit)), last)
                                     : std::ldexp(static_cast<double>(magnitude), unit);
    const float nearest = static_cast<float>(sum < 0 ? -value : value);
    return std::isinf(nearest) ? std::nanf("") : nearest;
}

// ---- Gradients ----

struct Gradients {
    int32_t type;
    std::vector<uint32_t> bits;
    std::vector<uint8_t> bytes;
};

Gradients gradients_of(int32_t type, std::vector<uint32_t> bits) {
    const size_t size = type == ODC_F32 ? 4 : 2;
    Gradients made{type, std::move(bits), {}};
    made.bytes.resize(made.bits.size() * size);
    for (size_t i = 0; i < made.bits.size(); ++i) {
        std::memcpy(&made.bytes[i * size], &made.bits[i], size);
    }
    return made;
}

Gradients every_half(int32_t type) {
    std::vector<uint32_t> bits(65536);
    std::iota(bits.begin(), bits.end(), 0U);
    return gradients_of(type, std::move(bits));
}

Gradients random_f32(size_t count, bool finite) {
    std::mt19937 random(20231);
    std::vector<uint32_t> bits(count);
    for (uint32_t &one : bits) {
        do {
            one = static_cast<uint32_t>(random());
        } while (finite && !number_of(ODC_F32, one).finite);
    }
    return gradients_of(ODC_F32, std::move(bits));
}

// The same for every loop, and slow under an emulator.
struct Expected {
    int exponent;
    std::vector<int64_t> units;  // kNotFinite for NaN and infinities
    odc::Special special;
};

Expected expected_of(const Gradients &gradients, int exponent) {
    Expected expected{exponent, {}, {}};
    for (const uint32_t bits : gradients.bits) {
        const Number number = number_of(gradients.type, bits);
        const Addend addend = addend_of(number, exponent);
        expected.units.push_back(number.finite ? addend.units : odc::kNotFinite);
        expected.special.not_finite += number.finite ? 0 : 1;
        expected.special.clamped += number.finite && addend.clamped ? 1 : 0;
    }
    return expected;
}

void check_addition(const Gradients &gradients, const Expected &expected, AddLoop loop, Sum sum, Found found) {
    std::vector<int64_t> sums(gradients.bits.size());
    for (size_t i = 0; i < sums.size(); ++i) {
        sums[i] = found == Found::Any && i % 5 == 0 ? odc::kNotFinite : static_cast<int64_t>(i * 7919) - 1000000;
    }
    const std::vector<int64_t> before = sums;
    const odc::Special special = odc::add_exactly_by(loop, sum, found, gradients.type, expected.exponent, sums.data(),
                                                     gradients.bytes.data(), sums.size());
    for (size_t i = 0; i < sums.size(); ++i) {
        const int64_t units = expected.units[i];
        const bool lost = units == odc::kNotFinite || (sum == Sum::Add && before[i] == odc::kNotFinite);
        const int64_t want = lost ? odc::kNotFinite : sum == Sum::Store ? units : before[i] + units;
        if (sums[i] != want) {
            std::printf("type %d, bits %x, exponent %d: %lld instead of %lld\n", gradients.type, gradients.bits[i],
                        expected.exponent, static_cast<long long>(sums[i]), static_cast<long long>(want));
            assert_true(false);
        }
    }
    assert_int_equal(special.clamped, expected.special.clamped);
    assert_int_equal(special.not_finite, expected.special.not_finite);
}

void check_additions(const Gradients &gradients) {
    for (const int exponent : kExponents) {
        const Expected expected = expected_of(gradients, exponent);
        with_every_target([&] {
            for (const AddLoop loop : odc::kAddLoops) {
                check_addition(gradients, expected, loop, Sum::Store, Found::Finite);
                check_addition(gradients, expected, loop, Sum::Add, Found::Finite);
                check_addition(gradients, expected, loop, Sum::Add, Found::Any);
            }
        });
    }
}

void every_half_is_added_as_the_model_does(void **) {
    check_additions(every_half(ODC_BF16));
    check_additions(every_half(ODC_F16));
}

void random_f32_are_added_as_the_model_does(void **) {
    check_additions(random_f32(20011, false));
    check_additions(random_f32(20011, true));
}

// Half a unit, to the even one; just below and at the limit.
void ties_and_limits_are_those_of_the_model(void **) {
    const auto bits_of = [](float value) {
        uint32_t bits = 0;
        std::memcpy(&bits, &value, sizeof(bits));
        return bits;
    };
    std::vector<uint32_t> bits;
    for (const float sign : {1.0F, -1.0F}) {
        for (const float value : {0.5F, 1.5F, 2.5F, 0.25F, 0.75F, 3.5F, 8388607.5F}) {
            bits.push_back(bits_of(sign * std::ldexp(value, 10 - 51)));
        }
        bits.push_back(bits_of(sign * 1024.0F));
        bits.push_back(bits_of(sign * std::nextafter(1024.0F, 0.0F)));
        bits.push_back(bits_of(sign * 0.0F));
    }
    const Gradients gradients = gradients_of(ODC_F32, bits);
    const Expected expected = expected_of(gradients, 10);
    with_every_target([&] { check_addition(gradients, expected, AddLoop::Line, Sum::Add, Found::Finite); });
}

// Alone among numbers, in every lane.
void a_single_special_value_is_seen(void **) {
    constexpr uint32_t kOne = 0x3f800000;
    with_every_target([&] {
        for (const uint32_t special : {0x7f800000U, 0xff800000U, 0x7fc00000U, 0x7f800001U, 0xffffffffU, 0x60000000U}) {
            for (size_t i = 0; i < 37; ++i) {
                std::vector<uint32_t> bits(37, kOne);
                bits[i] = special;
                const Gradients gradients = gradients_of(ODC_F32, bits);
                const Expected expected = expected_of(gradients, 10);
                check_addition(gradients, expected, AddLoop::Line, Sum::Store, Found::Finite);
                check_addition(gradients, expected, AddLoop::Line, Sum::Add, Found::Any);
            }
        }
    });
}

void additions_of_any_length_touch_nothing_else(void **) {
    constexpr size_t kGuard = 8;
    const Gradients gradients = random_f32(4200, true);
    std::vector<size_t> counts(80);
    std::iota(counts.begin(), counts.end(), size_t{0});
    counts.insert(counts.end(), {511, 512, 513, 1023, 1024, 1057, 4096});
    with_every_target([&] {
        for (const AddLoop loop : odc::kAddLoops) {
            for (const size_t count : counts) {
                for (size_t shift = 0; shift < 3; ++shift) {
                    std::vector<int64_t> sums(count + 2 * kGuard, 3);
                    odc::add_exactly_by(loop, Sum::Add, Found::Finite, ODC_F32, 100, sums.data() + kGuard,
                                        gradients.bytes.data() + 4 * shift, count);
                    for (size_t i = 0; i < sums.size(); ++i) {
                        const bool inside = i >= kGuard && i < kGuard + count;
                        const int64_t units =
                            inside ? addend_of(number_of(ODC_F32, gradients.bits[i - kGuard + shift]), 100).units : 0;
                        assert_true(sums[i] == 3 + units);
                    }
                }
            }
        }
    });
}

std::vector<int64_t> telling_sums() {
    std::mt19937_64 random(77);
    std::vector<int64_t> sums = {0, 1, -1, odc::kNotFinite, odc::kNotFinite + 1, std::numeric_limits<int64_t>::max()};
    for (int bits = 1; bits < 63; ++bits) {
        // Ties of f32, and what is one unit beside them.
        for (const int64_t beside : {-1, 0, 1}) {
            const int64_t one = int64_t{1} << bits;
            const int64_t tie = bits >= 24 ? one | int64_t{1} << (bits - 24) : one;
            sums.insert(sums.end(), {tie + beside, -(tie + beside), one + beside});
        }
    }
    for (int i = 0; i < 5000; ++i) {
        sums.push_back(static_cast<int64_t>(random()) >> (random() % 63));
    }
    return sums;
}

// In place, and of every length.
void sums_become_the_nearest_f32(void **) {
    const std::vector<int64_t> sums = telling_sums();
    with_every_target([&] {
        for (const int exponent : kExponents) {
            for (const size_t count : {sums.size(), size_t{0}, size_t{1}, size_t{7}, size_t{513}}) {
                std::vector<int64_t> memory = sums;
                const double largest = odc::exact_sums_to_f32(memory.data(), memory.data(), count, exponent);
                double most = 0;
                for (size_t i = 0; i < count; ++i) {
                    float got = 0;
                    std::memcpy(&got, reinterpret_cast<const char *>(memory.data()) + i * sizeof(got), sizeof(got));
                    const float want = f32_of(sums[i], exponent);
                    if (std::isnan(want) ? !std::isnan(got) : std::memcmp(&got, &want, sizeof(got)) != 0) {
                        std::printf("%lld, exponent %d: %a instead of %a\n", static_cast<long long>(sums[i]), exponent,
                                    static_cast<double>(got), static_cast<double>(want));
                        assert_true(false);
                    }
                    if (sums[i] != odc::kNotFinite) {
                        most = std::max(most, std::fabs(static_cast<double>(sums[i])));
                    }
                }
                assert_true(largest == most);
                assert_memory_equal(&memory[count], &sums[count], (sums.size() - count) * sizeof(int64_t));
            }
        }
    });
}

void large_additions_are_whole_while_a_loop_is_chosen(void **) {
    constexpr size_t kCount = 8192;
    constexpr uint64_t kSlice = uint64_t{1} << 20;
    std::vector<int64_t> sums(kCount);
    const std::vector<float> from(kCount, 2.0F);
    for (int i = 1; i <= 100; ++i) {
        odc::add_exactly(i == 1 ? Sum::Store : Sum::Add, Found::Finite, ODC_F32, 10, sums.data(), from.data(), kCount,
                         kSlice);
        for (const int64_t sum : sums) {
            assert_true(sum == i * (int64_t{1} << 42));
        }
    }
    assert_non_null(std::strstr(odc::exact_loop_figures().c_str(), "add f32 exactly by "));
}

// A mode of this thread in which subnormal numbers are lost and results are rounded up.
class OtherFloatMode {
public:
#if defined(__SSE2__)
    OtherFloatMode() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kOther); }
    ~OtherFloatMode() { _mm_setcsr(before_); }
    static bool is_set() { return (_mm_getcsr() & kOther) == kOther; }

private:
    static constexpr unsigned kOther = 0xc040;  // flush to zero, to nearest or up, denormals are zeros
    unsigned before_;
#elif defined(__aarch64__)
    OtherFloatMode() : before_(read()) { write(before_ | kOther); }
    ~OtherFloatMode() { write(before_); }
    static bool is_set() { return (read() & kOther) == kOther; }

private:
    static constexpr uint64_t kOther = uint64_t{1} << 24 | uint64_t{1} << 22;
    static uint64_t read() {
        uint64_t word;
        asm volatile("mrs %0, fpcr" : "=r"(word));
        return word;
    }
    static void write(uint64_t word) { asm volatile("msr fpcr, %0" : : "r"(word)); }
    uint64_t before_;
#else
    OtherFloatMode() { std::fesetround(FE_UPWARD); }
    ~OtherFloatMode() { std::fesetround(FE_TONEAREST); }
    static bool is_set() { return std::fegetround() == FE_UPWARD; }
#endif
};

// The least exponent, at which a unit is the least subnormal number.
void the_programs_float_mode_changes_nothing(void **) {
    std::vector<uint32_t> bits(1000);
    std::iota(bits.begin(), bits.end(), 0x7ffe00U);  // on both sides of the least normal number
    const Gradients gradients = gradients_of(ODC_F32, bits);
    with_every_target([&] {
        std::vector<int64_t> sums(bits.size());
        {
            const OtherFloatMode mode;
            odc::add_exactly_by(AddLoop::Line, Sum::Store, Found::Finite, ODC_F32, odc::kLeastExponent, sums.data(),
                                gradients.bytes.data(), sums.size());
            assert_true(OtherFloatMode::is_set());
        }
        for (size_t i = 0; i < bits.size(); ++i) {
            assert_true(sums[i] == addend_of(number_of(ODC_F32, bits[i]), odc::kLeastExponent).units);
        }
        {
            const OtherFloatMode mode;
            odc::exact_sums_to_f32(sums.data(), sums.data(), sums.size(), odc::kLeastExponent);
            assert_true(OtherFloatMode::is_set());
        }
        assert_memory_equal(sums.data(), bits.data(), bits.size() * sizeof(uint32_t));
    });
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(every_half_is_added_as_the_model_does),
        cmocka_unit_test(random_f32_are_added_as_the_model_does),
        cmocka_unit_test(ties_and_limits_are_those_of_the_model),
        cmocka_unit_test(a_single_special_value_is_seen),
        cmocka_unit_test(additions_of_any_length_touch_nothing_else),
        cmocka_unit_test(sums_become_the_nearest_f32),
        cmocka_unit_test(the_programs_float_mode_changes_nothing),
        cmocka_unit_test(large_additions_are_whole_while_a_loop_is_chosen),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}

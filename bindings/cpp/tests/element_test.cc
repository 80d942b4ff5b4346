// SPDX-License-Identifier: Apache-2.0
// Half-precision numbers compared with their definition, and views.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "testing.h"

namespace {

// A number from its fields, by IEEE 754.
double value_of(uint16_t bits, int exponent_bits, int fraction_bits) {
    const int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1);
    const int fraction = bits & ((1 << fraction_bits) - 1);
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const double sign = bits >> 15 == 0 ? 1 : -1;
    if (exponent == (1 << exponent_bits) - 1) {
        return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
    }
    return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias - fraction_bits)
                         : sign * std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

// The nearest number, of two equally near ones the even one; infinite from half a step beyond the largest on.
template <class Half>
uint16_t nearest(const std::vector<double> &positive, double value) {
    const auto above = std::lower_bound(positive.begin(), positive.end(), std::abs(value));
    auto index = static_cast<size_t>(above - positive.begin());
    if (index == positive.size()) {
        --index;  // which is infinity
    } else if (index > 0) {
        const double step = index + 1 == positive.size() ? positive[index - 1] - positive[index - 2] : 0;
        const double upper = index + 1 == positive.size() ? positive[index - 1] + step : positive[index];
        const double down = std::abs(value) - positive[index - 1], up = upper - std::abs(value);
        index -= down < up || (down == up && index % 2 == 1) ? 1 : 0;
    }
    return static_cast<uint16_t>(index | (std::signbit(value) ? 0x8000 : 0));
}

template <class Half>
void check_half(int exponent_bits, int fraction_bits) {
    std::vector<double> positive;
    for (uint32_t bits = 0; bits < 65536; ++bits) {
        Half half;
        half.bits = static_cast<uint16_t>(bits);
        const double wanted = value_of(half.bits, exponent_bits, fraction_bits);
        const float got = half;
        REQUIRE(wanted == static_cast<double>(got) ? std::signbit(wanted) == std::signbit(got)
                                                   : wanted != wanted && got != got);
        if (bits < 0x8000 && wanted == wanted) {
            positive.push_back(wanted);
        }
        if (wanted != wanted) {
            REQUIRE(std::isnan(static_cast<float>(Half(got))));
        } else {
            REQUIRE(Half(got).bits == half.bits);
        }
    }
    const uint64_t seed = test_seed();
    for (uint64_t i = 0; i < 400000; ++i) {
        const auto random = static_cast<uint32_t>(mix({seed, i}));
        float value = 0;
        if (i % 2 == 0) {
            std::memcpy(&value, &random, sizeof value);
        } else {  // halfway between two, and next to it
            const size_t index = random % (positive.size() - 2);
            value = static_cast<float>((positive[index] + positive[index + 1]) / 2);
            value = i % 4 == 1 ? value : std::nextafter(value, i % 8 == 3 ? 0.0f : 1e38f);
        }
        if (value == value) {
            REQUIRE(Half(value).bits == nearest<Half>(positive, static_cast<double>(value)));
        }
    }
    REQUIRE(std::isinf(static_cast<float>(Half(std::numeric_limits<float>::max()))));
}

void halves_are_the_nearest_numbers() {
    check_half<odc::Bf16>(8, 7);
    check_half<odc::F16>(5, 10);
}

void views_are_made_of_what_has_elements() {
    const auto sum = [](odc::span<const float> numbers) {
        float total = 0;
        for (const float number : numbers) {
            total += number;
        }
        return total;
    };
    std::vector<float> vector{1, 2};
    const std::array<float, 2> array{3, 4};
    float raw[] = {5, 6};
    odc::span<float> span(vector);
    span[1] = 7;
    REQUIRE(sum(vector) == 8 && sum(array) == 7 && sum(raw) == 11 && sum(span) == 8 && sum({raw, 1}) == 5);
    REQUIRE(sum(std::vector<float>(2, 1.5f)) == 3);
    REQUIRE(span.data() == vector.data() && span.size() == 2 && !span.empty() && odc::span<float>().empty());
}

}  // namespace

int main(int argc, char **argv) {
    return run_tests("element_test", {TEST(halves_are_the_nearest_numbers), TEST(views_are_made_of_what_has_elements)},
                     argc, argv);
}

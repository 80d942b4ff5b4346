// SPDX-License-Identifier: Apache-2.0
#include "memory/exact_digits.h"

#include <odc/odc.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"

namespace odc {

namespace {

constexpr int kDigitBits = 32;
constexpr int64_t kMask = (int64_t{1} << kDigitBits) - 1;
constexpr int kFractionBits = 64;  // of a sum, after the point
constexpr int kMostBits = 94;      // of a value, before it
// So 2^20 ranks' last digits add up exactly.
constexpr int64_t kMostLast = int64_t{1} << 33;
constexpr double kMostDigit = 0x1p53;

constexpr int kMantissaBits = 52;

using Words = std::array<uint32_t, ODC_EXACT_DIGITS>;  // of a magnitude, the least first

bool bit(const Words &words, int at) {
    return at >= 0 && (words[static_cast<size_t>(at / kDigitBits)] >> (at % kDigitBits) & 1) != 0;
}

// -1: there is none.
int top_bit(const Words &words) {
    int at = static_cast<int>(words.size()) * kDigitBits - 1;
    while (at >= 0 && !bit(words, at)) {
        --at;
    }
    return at;
}

// By 2^shift, to the nearest, ties to even.
uint64_t divided(uint64_t mantissa, int shift) {
    if (shift > kMantissaBits + 1) {
        return 0;
    }
    const uint64_t half = uint64_t{1} << (shift - 1);
    const uint64_t rest = mantissa & (2 * half - 1);
    const uint64_t whole = mantissa >> shift;
    return whole + (rest > half || (rest == half && (whole & 1) != 0) ? 1 : 0);
}

double nearest(const Words &words) {
    const int top = top_bit(words);
    const int first = top - kMantissaBits;
    uint64_t kept = 0;
    for (int at = top; at >= first; --at) {
        kept = kept << 1 | (bit(words, at) ? 1 : 0);
    }
    bool rest = false;
    for (int at = 0; at < first - 1; ++at) {
        rest = rest || bit(words, at);
    }
    kept += bit(words, first - 1) && (rest || (kept & 1) != 0) ? 1 : 0;
    return std::ldexp(static_cast<double>(kept), first - kFractionBits);
}

}  // namespace

ExactDigits::ExactDigits(const char *call, const double *digits) : call_(call), not_finite_(digits[kDigits]) {
    static_assert(kDigits + 1 == ODC_EXACT_DIGITS);
    for (size_t i = 0; i < kDigits; ++i) {
        if (!(std::fabs(digits[i]) <= kMostDigit) || std::trunc(digits[i]) != digits[i]) {
            fail(ODC_ERROR_ARGUMENT, "{}: digit {} is {}, which no exact sum has; begin with zeros", call, i,
                 digits[i]);
        }
        digits_[i] = static_cast<int64_t>(digits[i]);
    }
    carry();
}

void ExactDigits::add(std::span<const double> values) {
    for (size_t i = 0; i < values.size(); ++i) {
        if (!std::isfinite(values[i])) {
            not_finite_ += values[i];
            continue;
        }
        if (std::fabs(values[i]) >= 0x1p94) {
            fail(ODC_ERROR_ARGUMENT,
                 "{}: values[{}] is {}, too large for an exact sum; scale it so that it is below 2^{}", call_, i,
                 values[i], kMostBits);
        }
        add_finite(values[i]);
        if (std::abs(digits_.back()) > kMostLast) {
            fail(ODC_ERROR_ARGUMENT, "{}: the sum is too large for an exact sum at values[{}], {}; scale all values",
                 call_, i, values[i]);
        }
    }
}

// By its bits, as the program may have set another rounding, or that subnormal numbers count for zero.
void ExactDigits::add_finite(double value) {
    const auto bits = std::bit_cast<uint64_t>(value);
    const auto biased = static_cast<int>(bits >> kMantissaBits & 0x7ff);
    if (biased == 0) {
        return;  // zero or subnormal, far below half a unit
    }
    const uint64_t mantissa = (bits & ((uint64_t{1} << kMantissaBits) - 1)) | uint64_t{1} << kMantissaBits;
    const int shift = biased - 1023 - kMantissaBits + kFractionBits;
    const uint64_t units = shift >= 0 ? mantissa : divided(mantissa, -shift);
    const int left = std::max(shift, 0);
    const int64_t sign = bits >> 63 != 0 ? -1 : 1;
    const int by = left % kDigitBits;
    const uint64_t lower = (units & kMask) << by;
    const uint64_t upper = units >> kDigitBits << by;
    auto digit = static_cast<size_t>(left / kDigitBits);
    for (const uint64_t part : {lower & kMask, (lower >> kDigitBits) + (upper & kMask), upper >> kDigitBits}) {
        if (part != 0) {
            digits_[digit] += sign * static_cast<int64_t>(part);
        }
        ++digit;
    }
    carry();
}

void ExactDigits::carry() {
    for (size_t i = 0; i + 1 < kDigits; ++i) {
        digits_[i + 1] += digits_[i] >> kDigitBits;
        digits_[i] &= kMask;
    }
}

void ExactDigits::write(double *digits) const {
    for (size_t i = 0; i < kDigits; ++i) {
        digits[i] = static_cast<double>(digits_[i]);
    }
    digits[kDigits] = not_finite_;
}

double ExactDigits::value() const {
    if (not_finite_ != 0) {  // NaN, too
        return not_finite_;
    }
    // The magnitude, whose last digit may need two words.
    ExactDigits magnitude = *this;
    const bool negative = digits_.back() < 0;
    for (int64_t &digit : magnitude.digits_) {
        digit = negative ? -digit : digit;
    }
    magnitude.carry();
    Words words{};
    for (size_t i = 0; i < kDigits; ++i) {
        words[i] = static_cast<uint32_t>(magnitude.digits_[i]);
    }
    words[kDigits] = static_cast<uint32_t>(magnitude.digits_.back() >> kDigitBits);
    return negative ? -nearest(words) : nearest(words);
}

}  // namespace odc

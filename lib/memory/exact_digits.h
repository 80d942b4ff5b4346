// SPDX-License-Identifier: Apache-2.0
// Exact sums of numbers (odc_exact_add): integers in units of 2^-64, as digits in base 2^32 that are doubles, the least first, so
// that ranks combine them by adding doubles, exactly. All but the last digit are in 0..2^32-1; the last has the sign. Behind them
// is the sum of what is not finite.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace odc {

class ExactDigits {
public:
    // Digits of one rank, or added over ranks. Throws ODC_ERROR_ARGUMENT if they are none; `call` is what its text begins with.
    ExactDigits(const char *call, const double *digits);

    // Rounds to a unit. Throws ODC_ERROR_ARGUMENT if a value or the sum is too large.
    void add(std::span<const double> values);
    void write(double *digits) const;
    // To the nearest double, ties to even.
    double value() const;

private:
    static constexpr size_t kDigits = 5;

    void add_finite(double value);
    void carry();

    const char *call_;
    std::array<int64_t, kDigits> digits_;
    double not_finite_;
};

}  // namespace odc

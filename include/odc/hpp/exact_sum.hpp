// SPDX-License-Identifier: Apache-2.0
// Sums of numbers whose bits depend neither on their order nor on which rank adds which; needs no context.
#ifndef ODC_HPP_EXACT_SUM_HPP
#define ODC_HPP_EXACT_SUM_HPP
#include <array>

#include "library.hpp"

namespace odc {
inline namespace ODC_ABI {

// Ranks combine their sums by adding `digits` (Context::all_reduce, sync_reduce), ten exact sums in a call.
struct ExactSum {
    std::array<double, ODC_EXACT_DIGITS> digits{};

    // Each value is rounded to a multiple of 2^-64, and is below 2^94.
    template <class... S, class = detail::Trailing<S...>>
    void add(span<const double> values, S &...status) noexcept(detail::kQuiet<S...>) {
        detail::check(odc_exact_add(digits.data(), values.data(), values.size()), status...);
    }
    template <class... S, class = detail::Trailing<S...>>
    void add(double value, S &...status) noexcept(detail::kQuiet<S...>) {
        detail::check(odc_exact_add(digits.data(), &value, 1), status...);
    }
    // The sum of the digits, this rank's or all ranks', rounded to the nearest double.
    template <class... S, class = detail::Trailing<S...>>
    double value(S &...status) const noexcept(detail::kQuiet<S...>) {
        double value = 0;
        detail::check(odc_exact_value(digits.data(), &value), status...);
        return value;
    }
};

}  // namespace ODC_ABI
}  // namespace odc
#endif

// SPDX-License-Identifier: Apache-2.0
// The interval of the sign test: the number of values below the median is binomial(n, 1/2), so the k-th smallest and the k-th
// largest value enclose it with a probability that depends only on n and k.
#include "rank/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace odc_tool {

namespace {

// The largest k (at least 1) for which the k-th smallest and the k-th largest of `count` values enclose the median with 95 %.
size_t enclosing_rank(size_t count) {
    const double n = static_cast<double>(count);
    double below = 0;  // P(fewer than k + 1 values lie below the median)
    size_t k = 0;
    for (; k < count / 2; ++k) {
        const double i = static_cast<double>(k);
        below += std::exp(std::lgamma(n + 1) - std::lgamma(i + 1) - std::lgamma(n - i + 1) - n * std::log(2.0));
        if (below > 0.025) {
            break;
        }
    }
    return std::max<size_t>(k, 1);
}

}  // namespace

MedianInterval median_interval(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const size_t count = values.size();
    const size_t k = enclosing_rank(count);
    return {(values[(count - 1) / 2] + values[count / 2]) / 2, values[k - 1], values[count - k]};
}

}  // namespace odc_tool

// SPDX-License-Identifier: Apache-2.0
// Statistics of paired measurements: a median with its confidence interval. No distribution is assumed, as the noise of a
// shared machine follows none.
#pragma once

#include <vector>

namespace odc_tool {

constexpr int kLeastPairsOfInterval = 6;  // the extremes of fewer enclose the median with less than 95 %

struct MedianInterval {
    double median;
    double low;   // the true median is in [low, high] with at least 95 % confidence,
    double high;  // or they are the extremes if there are too few values (less than kLeastPairsOfInterval)
};

// `values` must not be empty.
MedianInterval median_interval(std::vector<double> values);

}  // namespace odc_tool

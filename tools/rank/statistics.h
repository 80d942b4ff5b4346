// SPDX-License-Identifier: Apache-2.0
// The statistics of paired measurements: a median and how well it is known. No distribution is assumed, as the noise of
// a shared machine has none worth naming.
#pragma once

#include <vector>

namespace odc_tool {

struct MedianInterval {
    double median;
    double low;   // the true median is in [low, high] with at least 95 % confidence,
    double high;  // or they are the extremes when there are too few values (less than 6) to say so
};

// `values` must not be empty.
MedianInterval median_interval(std::vector<double> values);

}  // namespace odc_tool

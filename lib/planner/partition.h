// SPDX-License-Identifier: Apache-2.0
// Divides items among parts so that the longest is as short as possible: divisions to start from, by Karmarkar-Karp's largest
// differencing and others, and how good any division is. refinement.h improves them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace odc {

using Speeds = std::vector<double>;                // of each part, which takes its items' cost / its speed
using Parts = std::vector<std::vector<uint32_t>>;  // the indices of each part's items

// How many items a part may hold.
struct CountLimits {
    size_t low;
    size_t high;
};

// All items, the costliest first; of equal costs in the order of their indices.
std::vector<uint32_t> by_cost(const std::vector<double> &costs);

// Starting divisions. Each gives every part an item if there are enough; in the second and third the parts' counts differ by at
// most one.
Parts largest_differencing(const std::vector<double> &costs, size_t parts);
Parts largest_differencing_equal(const std::vector<double> &costs, size_t parts);
Parts round_robin(size_t items, size_t parts);
Parts longest_first(const std::vector<double> &costs, size_t parts);
// The costliest item first, each to the part that then ends first; parts may stay empty.
Parts first_to_end(const std::vector<double> &costs, const Speeds &speeds);
// Gives the costliest part to the fastest.
Parts matched(const Parts &parts, const std::vector<double> &costs, const Speeds &speeds);

// The time of the part that takes longest; sums in the order of the items' indices, so that equal parts have equal sums.
double makespan(const Parts &parts, const std::vector<double> &costs, const Speeds &speeds);

// A lower bound of the makespan of any division among parts of these speeds.
double lower_bound(const std::vector<double> &costs, const Speeds &speeds);

}  // namespace odc

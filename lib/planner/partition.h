// SPDX-License-Identifier: Apache-2.0
// Dividing items among parts so that the costliest part is cheap: start from Karmarkar-Karp's largest differencing,
// improve by exchanging items, and search exhaustively where the input is small.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace odc {

using Parts = std::vector<std::vector<uint32_t>>;  // the indices of each part's items

// How many items a part may hold.
struct CountLimits {
    size_t low;
    size_t high;
};

// Starts. Each gives every part an item if there are enough; in the second and third the parts' counts differ by at
// most one.
Parts largest_differencing(const std::vector<double> &costs, size_t parts);
Parts largest_differencing_equal(const std::vector<double> &costs, size_t parts);
Parts round_robin(size_t items, size_t parts);
Parts longest_first(const std::vector<double> &costs, size_t parts);

// Exchanges up to two items of one part for up to two of another while that brings the costliest or the cheapest part
// nearer to the rest. Stops after `steps` comparisons, which makes the time bounded and the result repeatable.
void refine(Parts &parts, const std::vector<double> &costs, CountLimits limits, uint64_t steps);

// Branch and bound: replaces `parts` where it finds something cheaper. For few items the result is optimal; gives up
// after `nodes` tried placements.
void search(Parts &parts, const std::vector<double> &costs, CountLimits limits, uint64_t nodes);

// The cost of the costliest part; sums in the order of the items' indices, so that equal parts have equal sums.
double makespan(const Parts &parts, const std::vector<double> &costs);

// No division of the items into so many parts has a smaller makespan.
double lower_bound(const std::vector<double> &costs, size_t parts);

}  // namespace odc

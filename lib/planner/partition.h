// SPDX-License-Identifier: Apache-2.0
// Divides items among parts so that the costliest part is as cheap as possible: starts from Karmarkar-Karp's largest
// differencing, improves by exchanging items, and searches exhaustively if there are few items.
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

// Starting divisions. Each gives every part an item if there are enough; in the second and third the parts' counts differ by at
// most one.
Parts largest_differencing(const std::vector<double> &costs, size_t parts);
Parts largest_differencing_equal(const std::vector<double> &costs, size_t parts);
Parts round_robin(size_t items, size_t parts);
Parts longest_first(const std::vector<double> &costs, size_t parts);

// Exchanges up to two items of one part for up to two of another while that brings the costliest or the cheapest part closer to
// the others. Stops after `steps` comparisons, so that the time is bounded and the result deterministic.
void refine(Parts &parts, const std::vector<double> &costs, CountLimits limits, uint64_t steps);

// Branch and bound: replaces `parts` if it finds a cheaper division. Stops after `nodes` placements; the result is optimal if
// it needs no more.
void search(Parts &parts, const std::vector<double> &costs, CountLimits limits, uint64_t nodes);

// The cost of the costliest part; sums in the order of the items' indices, so that equal parts have equal sums.
double makespan(const Parts &parts, const std::vector<double> &costs);

// A lower bound of the makespan of any division into `parts` parts.
double lower_bound(const std::vector<double> &costs, size_t parts);

}  // namespace odc

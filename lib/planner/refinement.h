// SPDX-License-Identifier: Apache-2.0
// Improves divisions (partition.h): by exchanging items, and by an exhaustive search if there are few.
#pragma once

#include "planner/partition.h"

#include <cstdint>
#include <vector>

namespace odc {

// Exchanges up to two items of one part for up to two of another while that brings the longest or the shortest part closer to
// the others. Stops after `steps` comparisons, so that the time is bounded and the result deterministic.
void refine(Parts &parts, const std::vector<double> &costs, const Speeds &speeds, CountLimits limits, uint64_t steps);

// Branch and bound: replaces `parts` if it finds a shorter division. Stops after `nodes` placements; the result is optimal if
// it needs no more.
void search(Parts &parts, const std::vector<double> &costs, const Speeds &speeds, CountLimits limits, uint64_t nodes);

}  // namespace odc

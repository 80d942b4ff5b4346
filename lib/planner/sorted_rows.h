// SPDX-License-Identifier: Apache-2.0
// The best schedule of collectives: ranks take different numbers of samples, but equally many microbatches, and those that run
// at the same time (a row) cost alike. Grouping by cost is known from torchtitan's pull request 3938.
#pragma once

#include "planner/minibatch.h"

#include <optional>
#include <vector>

namespace odc {

// How long collectives take: ranks wait for each other after each microbatch.
double collective_makespan(const std::vector<Microbatches> &ranks, const Minibatch &minibatch);

// None if there are fewer samples than ranks, or no division into equally many microbatches was found.
std::optional<std::vector<Microbatches>> sorted_rows(const Minibatch &minibatch);

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// Divides a rank's samples into microbatches within the token budget.
#pragma once

#include "planner/minibatch.h"

#include <optional>
#include <vector>

namespace odc {

bool within_budget(const Samples &samples, const Minibatch &minibatch);

// No division has fewer; that many may still not do.
size_t fewest_microbatches(const Samples &samples, const Minibatch &minibatch);

// The next number of microbatches to try: one more, in larger steps once there are hundreds.
size_t after(size_t microbatches);

// Into this number, balanced by `weights`, one for each sample of the minibatch. None if one exceeds the budget.
std::optional<Microbatches> packed(const Samples &samples, size_t microbatches, const Minibatch &minibatch,
                                   const std::vector<double> &weights);

void heaviest_first(Microbatches &microbatches, const Minibatch &minibatch);

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// Work that is left to be claimed: whoever is ahead takes the next item, so ranks end together although some are slower than
// they were planned to be.
#pragma once

#include "planner/minibatch.h"

#include <vector>

namespace odc {

struct Tail {
    Samples planned;     // what is left for the ranks' plans, ascending
    Microbatches items;  // in the order of their claims, the costliest first
};

// The cheapest samples, up to `share` of the cost, for `ranks` to claim, idle ones included.
Tail cut_tail(const Minibatch &minibatch, double share, size_t ranks);

// The ranks' planned microbatches and what they claim, if they are as fast as planned: whoever is done first takes the next item.
std::vector<Microbatches> claimed_in_order(std::vector<Microbatches> ranks, const Microbatches &items,
                                           const Minibatch &minibatch);

}  // namespace odc

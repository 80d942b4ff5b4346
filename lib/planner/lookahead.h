// SPDX-License-Identifier: Apache-2.0
// Lookahead: exchanges samples between the minibatches of a window. A minibatch keeps all ranks busy if its cost, spread over
// them, is at least that of its costliest sample. With few samples a rank this takes several costly samples in one minibatch,
// which takes them from the others.
#pragma once

#include "planner/minibatch.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace odc {

// The minibatches of a window, each of its samples.
using Window = std::vector<Samples>;

struct MoveLimits {
    double moved;         // share of the samples that may change their minibatch
    double displacement;  // by how many minibatches, mean over all samples
};

struct Moves {
    uint64_t moved = 0;
    uint64_t displacement = 0;
};

// The estimated time of a window on so many ranks, if each minibatch is balanced as well as its costliest sample allows.
double estimate(const Window &window, const std::vector<double> &costs, size_t ranks);
// Whether `time` is less than `than` by more than rounding.
bool is_less(double time, double than);

// A lower bound: no order of the window's samples that keeps the minibatches' numbers of samples takes less.
double least_time(const Window &window, const std::vector<double> &costs, size_t ranks);

// Exchanges samples within groups of neighbouring minibatches, each group within the limits. Each minibatch keeps its number of
// samples. Takes the division into groups with the least estimate.
Window exchanged(const Window &window, const std::vector<double> &costs, size_t ranks, MoveLimits limits);

// All samples by cost, the costliest in the first minibatch.
Window sorted(const Window &window, const std::vector<double> &costs);

Moves moves_between(const Window &before, const Window &after, size_t samples);

}  // namespace odc

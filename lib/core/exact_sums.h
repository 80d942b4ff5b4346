// SPDX-License-Identifier: Apache-2.0
// A shard's exact sums (memory/exact_sum.h) over the minibatches: the exponent that its owners agree on by publishing, and the
// sums in f32 that the owner reads.
#pragma once

#include "base/counters.h"
#include "core/shard.h"

namespace odc {

class Job;

// Writes this rank's vote, before its slice is published for `generation`: the minibatch plus one, here and below.
void publish_vote(Shard &shard, uint64_t generation);
// The exponent of the shard's sums, which all owners have voted for once they have published.
int exponent_of(const Shard &shard, uint64_t generation);
// Once all ranks have arrived: makes f32 of this rank's sums in host memory, zero where nobody has added, and its next vote. A
// second call does nothing. Fails the job if there were too many additions.
void finish_exact_sums(Shard &shard, uint64_t generation, Job &job, Counters &counters);
// The same for sums that have been converted already, on a GPU.
struct ConvertedSums {
    double largest = 0;      // magnitude in units
    uint64_t clamped = 0;    // addends beside those that the record counts
    uint64_t additions = 0;  // the most to one element, counted up to the limit plus one
};
void end_exact_sums(Shard &shard, uint64_t generation, const ConvertedSums &converted, Job &job, Counters &counters);
// The `largest` of odc_slice; 0 without exact sums.
float largest_of(const Shard &shard);

}  // namespace odc

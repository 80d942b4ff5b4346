// SPDX-License-Identifier: Apache-2.0
// A shard's exact sums (memory/exact_sum.h) over the minibatches: the exponent that its owners agree on by publishing, and the
// sums in f32 that the owner reads.
#pragma once

#include "base/counters.h"
#include "core/shard.h"

namespace odc {

class Job;

// Before the slice is published for `epoch`, here and below: the minibatch plus one.
void publish_vote(Shard &shard, uint64_t epoch);
// The shard's, once all owners have published.
int exponent_of(const Shard &shard, uint64_t epoch);
// All ranks have arrived: makes f32 of this rank's sums in host memory, zero where nobody has added, and its next vote. Again:
// does nothing. Fails the job if there were too many additions.
void finish_exact_sums(Shard &shard, uint64_t epoch, Job &job, Counters &counters);
// The same of sums that are f32 now.
struct ConvertedSums {
    double largest = 0;      // magnitude in units
    uint64_t clamped = 0;    // addends beside those that the record counts
    uint64_t additions = 0;  // the most to an element, up to one too many
};
void end_exact_sums(Shard &shard, uint64_t epoch, const ConvertedSums &converted, Job &job, Counters &counters);
// For odc_slice; 0 without exact sums.
float largest_of(const Shard &shard);

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// `odc bench claim`: all ranks claim items as fast as they can.
#pragma once

#include "bench/operation.h"
#include "bench/race.h"

#include <odc/odc.h>

namespace odc_tool {

// One claim is an operation; a minibatch is a timing.
Contestant claims(odc_context *context);

struct ClaimResult {
    uint64_t repeats;           // claims of a rank in a timing
    MedianInterval per_second;  // of all ranks together
    MedianInterval limit;       // the same of additions to one atomic counter
    MedianInterval ratio;
    Disturbance disturbance;
};

ClaimResult race_claims(Group &group, odc_context *context, int pairs, double timing_seconds);

}  // namespace odc_tool

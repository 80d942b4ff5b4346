// SPDX-License-Identifier: Apache-2.0
// Which rank runs which samples of a minibatch, in which microbatches (paper section 4).
#pragma once

#include "base/error.h"

namespace odc {

// See odc_plan in odc.h. `request` is complete (copied to today's size); throws Error for bad input.
odc_plan_summary plan(const odc_plan_request &request, int32_t *rank_of, int32_t *microbatch_of);

// See odc_plan_cost.
void plan_cost(const char *model, double *a, double *b);

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// Assigns the samples of a minibatch to ranks and microbatches (paper section 4).
#pragma once

#include "base/error.h"

namespace odc {

// See odc_plan in odc.h. `request` has this library's size. Throws ODC_ERROR_ARGUMENT.
odc_plan_summary plan(const odc_plan_request &request, int32_t *rank_of, int32_t *microbatch_of);

}  // namespace odc

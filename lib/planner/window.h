// SPDX-License-Identifier: Apache-2.0
// Plans several minibatches at once.
#pragma once

#include "base/error.h"

namespace odc {

// See odc_plan_window in odc.h. The requests have this library's sizes. Throws ODC_ERROR_ARGUMENT.
odc_window_summary plan_window(const odc_window_request &window, const odc_plan_request &samples, int32_t *minibatch_of,
                               int32_t *rank_of, int32_t *microbatch_of);

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// The CUDA driver for what `odc bench` does on GPUs beside libodc.
#pragma once

#include "cuda_interface.h"

namespace odc_tool::cuda {

using namespace odc::cuda;

// Loaded once per process. Throws Exit where there is none; odc_get_transport says why, and comes first.
const Functions &driver();
// Throws Exit with CUDA's words for what `call` did not do.
void check(Result result, const char *call);

}  // namespace odc_tool::cuda

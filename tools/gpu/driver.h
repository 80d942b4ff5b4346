// SPDX-License-Identifier: Apache-2.0
// The CUDA driver for the parts of `odc bench` that do not use libodc.
#pragma once

#include "cuda_interface.h"

namespace odc_tool::cuda {

using namespace odc::cuda;

// Loaded once per process. Throws Exit if it is missing; call odc_get_transport first, which says why.
const Functions &driver();
// Throws Exit with CUDA's error text if `call` failed.
void check(Result result, const char *call);

}  // namespace odc_tool::cuda

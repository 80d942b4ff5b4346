// SPDX-License-Identifier: Apache-2.0
// `odc bench --memory cuda`: the ranks of one host on its GPUs.
#pragma once

#include "bench/options.h"

namespace odc_tool {

// Runs as one rank of the job that the environment names. Throws Exit.
void run_gpu_rank(const BenchOptions &options);

}  // namespace odc_tool

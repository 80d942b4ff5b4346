// SPDX-License-Identifier: Apache-2.0
// The GPU kernels on the CPU, for the fake CUDA driver.
#pragma once

#include <string>

#include "transport/cuda/kernels/exact.h"

// Runs odc_add_f32, odc_add_f64, odc_add_bf16 or odc_add_f16 of lib/transport/cuda/kernels/add.cu, or a kernel of exact.cu there, as
// cuLaunchKernel would, in the calling thread, with atomic additions; other threads and processes may add to the same elements.
// Also runs odc_plain_add_f32 and so on of tools/gpu/kernels/plain_add.cu, whose additions are not atomic. Returns false if there
// is no kernel of this name.
bool run_kernel(const char *name, unsigned grid_x, unsigned block_x, void **parameters);
bool has_kernel(const std::string &name);

// Whether it is an odc_plain_add kernel, whose parameters are sums, values and their number.
bool is_plain(const char *name);

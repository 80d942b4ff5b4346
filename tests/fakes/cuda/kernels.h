// SPDX-License-Identifier: Apache-2.0
// The GPU kernels on the CPU, for a CUDA driver that pretends to have a GPU.
#pragma once

#include "transport/cuda/kernels/add.h"

// Runs odc_add_f32, odc_add_f64, odc_add_bf16 or odc_add_f16 of lib/transport/cuda/kernels/add.cu as cuLaunchKernel would, in the
// calling thread, with atomic additions; other threads and processes may add at the same places. And odc_plain_add_f32
// and so on of tools/gpu/kernels/plain_add.cu, without atomics, for such additions. False if there is no kernel of this name.
bool run_kernel(const char *name, unsigned grid_x, unsigned block_x, void **parameters);

// Whether it is one of the latter, whose parameters are sums, values and their number.
bool is_plain(const char *name);

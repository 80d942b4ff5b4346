// SPDX-License-Identifier: Apache-2.0
// The GPU kernels on the CPU, for a CUDA driver that pretends to have a GPU.
#pragma once

// Runs odc_add_f32, odc_add_f64, odc_add_bf16 or odc_add_f16 of lib/kernels/add.cu as cuLaunchKernel would, in the
// calling thread, with atomic additions; other threads and processes may add at the same places. False if there is no
// kernel of this name.
bool run_kernel(const char *name, unsigned grid_x, unsigned block_x, void **parameters);

// SPDX-License-Identifier: Apache-2.0
// The GPU kernels as PTX, which the CUDA driver compiles.
#pragma once

namespace odc {

// PTX of odc_add_f32, odc_add_f64, odc_add_bf16 and odc_add_f16 (see kernels/add.h) for GPUs of this major compute
// capability, at least 8. The PTX for 9 and later needs a driver for CUDA 12.1; the PTX for 8 also runs there, but with
// scalar reductions.
const char *add_kernel_ptx(int compute_major);
// PTX of odc_exact_add_f32, odc_exact_add_bf16, odc_exact_add_f16, odc_exact_add_sums and odc_exact_to_f32 (see kernels/exact.h), for
// all of them.
const char *exact_kernel_ptx();

}  // namespace odc

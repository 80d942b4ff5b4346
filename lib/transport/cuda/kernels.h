// SPDX-License-Identifier: Apache-2.0
// The GPU kernels, in the text form that the CUDA driver compiles.
#pragma once

namespace odc {

// PTX of odc_add_f32, odc_add_f64, odc_add_bf16 and odc_add_f16 (kernels/add.h says what they do) for GPUs of the
// compute capability that begins with this, at least 8. That for 9 and later needs a driver of CUDA 12.1; that for 8
// runs there, too, with scalar reductions.
const char *add_kernel_ptx(int compute_major);

}  // namespace odc

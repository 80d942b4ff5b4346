// SPDX-License-Identifier: Apache-2.0
// The GPU kernels, as machine code and as PTX, which the CUDA driver compiles.
#pragma once

namespace odc {

struct KernelImages {
    const void *cubin;  // for GPUs of this major compute capability only; NULL: there is none
    const char *ptx;    // for those of later ones, too
};

// odc_add_f32, odc_add_f64, odc_add_bf16 and odc_add_f16 (see kernels/add.h) for GPUs of this major compute capability, at least 8.
// What is for 9 and later needs a driver for CUDA 12.1; the PTX for 8 also runs there, but with scalar reductions.
KernelImages add_kernel_images(int compute_major);
// odc_exact_add_f32, odc_exact_add_bf16, odc_exact_add_f16, odc_exact_add_sums and odc_exact_to_f32 (see kernels/exact.h).
KernelImages exact_kernel_images(int compute_major);

}  // namespace odc

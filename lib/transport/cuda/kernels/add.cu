// SPDX-License-Identifier: Apache-2.0
// The kernels that add gradients into accumulators, one per gradient type. make_ptx.sh compiles them to the library's PTX. They
// wait for nothing.
#include "add.h"

namespace {

// Reductions of system scope: atomic among all GPUs of the host. Those of f32 flush subnormals to zero.
struct Reductions {
    static __device__ __forceinline__ void one(float *to, float value) {
        asm volatile("red.relaxed.sys.global.add.f32 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "f"(value)
                     : "memory");
    }
    static __device__ __forceinline__ void one(double *to, double value) {
        asm volatile("red.relaxed.sys.global.add.f64 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "d"(value)
                     : "memory");
    }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    static constexpr unsigned kWidth = 4;
    static __device__ __forceinline__ void four(float *to, float a, float b, float c, float d) {
        asm volatile("red.relaxed.sys.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
                     "f"(a), "f"(b), "f"(c), "f"(d)
                     : "memory");
    }
#else
    static constexpr unsigned kWidth = 1;
#endif
};

}  // namespace

// Four blocks per multiprocessor are its maximum number of threads.
#define ODC_ADD_KERNEL(name, Gradient, Accumulator)                                                             \
    extern "C" __global__ void __launch_bounds__(odc::kAddThreads, 4)                                           \
        name(const __grid_constant__ odc::Addends additions) {                                                  \
        odc::add<Gradient, Accumulator, Reductions>(additions, blockIdx.x, gridDim.x, threadIdx.x, blockDim.x); \
    }

ODC_ADD_KERNEL(odc_add_f32, float, float)
ODC_ADD_KERNEL(odc_add_f64, double, double)
ODC_ADD_KERNEL(odc_add_bf16, odc::Bfloat16, float)
ODC_ADD_KERNEL(odc_add_f16, odc::Float16, float)

// SPDX-License-Identifier: Apache-2.0
// The kernels of exact sums. make_ptx.sh compiles them to the library's PTX. They wait for nothing.
#include "transport/cuda/kernels/exact.h"

namespace {

// Reductions of system scope: atomic among all GPUs of the host.
struct Atomics {
    static __device__ __forceinline__ void add(unsigned long long *to, unsigned long long value) {
        asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "l"(value)
                     : "memory");
    }
    // Blocks are whole warps.
    static __device__ __forceinline__ void add_of_warp(unsigned long long *to, unsigned count) {
        const unsigned sum = __reduce_add_sync(0xffffffff, count);
        if (sum != 0 && threadIdx.x % 32 == 0) {
            add(to, sum);
        }
    }
    static __device__ __forceinline__ void raise(unsigned long long *to, unsigned long long value) {
        if (*static_cast<volatile unsigned long long *>(to) < value) {  // seldom
            asm volatile("red.relaxed.sys.global.max.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "l"(value)
                         : "memory");
        }
    }
    static __device__ __forceinline__ void set(unsigned *word, unsigned bits) {
        asm volatile("red.relaxed.sys.global.or.b32 [%0], %1;" ::"l"(__cvta_generic_to_global(word)), "r"(bits)
                     : "memory");
    }
};

}  // namespace

// Two blocks to a multiprocessor: f64 takes more registers than four have.
#define ODC_EXACT_ADD_KERNEL(name, Gradient)                                                            \
    extern "C" __global__ void __launch_bounds__(odc::kAddThreads, 2)                                   \
        name(const __grid_constant__ odc::ExactAddends additions) {                                     \
        odc::add_exactly<Gradient, Atomics>(additions, blockIdx.x, gridDim.x, threadIdx.x, blockDim.x); \
    }

ODC_EXACT_ADD_KERNEL(odc_exact_add_f32, float)
ODC_EXACT_ADD_KERNEL(odc_exact_add_bf16, odc::Bfloat16)
ODC_EXACT_ADD_KERNEL(odc_exact_add_f16, odc::Float16)
ODC_EXACT_ADD_KERNEL(odc_exact_add_sums, long long)

extern "C" __global__ void __launch_bounds__(odc::kAddThreads, 2)
    odc_exact_to_f32(const __grid_constant__ odc::ExactWave wave) {
    const unsigned long long tiles = odc::wave_tiles(wave, blockDim.x);
    double largest = 0;
    for (unsigned long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        float values[odc::kConvertEach];
        largest = odc::read_tile(wave, tile, threadIdx.x, blockDim.x, values, largest);
        __syncthreads();
        odc::write_tile(wave, tile, threadIdx.x, blockDim.x, values);
    }
    odc::note_largest<Atomics>(wave, largest);
}

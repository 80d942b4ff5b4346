// SPDX-License-Identifier: Apache-2.0
// Additions by cp.reduce.async.bulk, which adds a block of shared memory to global memory without registers: an experiment
// compared with the library's reductions (bulk.py), for GPUs from sm_90 on. Its scope is one GPU. Whole tiles only, aligned to
// 16 bytes.
#include <cstdint>
#include <cstring>

#include "transport/cuda/kernels/add.h"

namespace {

constexpr unsigned kTile = 2048;  // elements, 8 KiB of sums
constexpr unsigned kTileBytes = kTile * sizeof(float);
constexpr unsigned kSlots = 5;  // tiles in flight in a block; four blocks fit in a multiprocessor

__device__ __forceinline__ unsigned shared_address(const void *at) {
    return static_cast<unsigned>(__cvta_generic_to_shared(at));
}

__device__ __forceinline__ void add_tile(float *to, const float *tile) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                     __cvta_generic_to_global(to)),
                 "r"(shared_address(tile)), "r"(kTileBytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until at most kLeft of the thread's additions still read their shared memory.
template <unsigned kLeft>
__device__ __forceinline__ void await_reads() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kLeft) : "memory");
}

__device__ __forceinline__ void await_all() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

__device__ __forceinline__ void begin_load(float *tile, const float *from, uint64_t *arrived) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(arrived)),
                 "r"(kTileBytes)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(tile)),
                 "l"(__cvta_generic_to_global(from)), "r"(kTileBytes), "r"(shared_address(arrived))
                 : "memory");
}

__device__ __forceinline__ void await_load(const uint64_t *arrived, unsigned phase) {
    unsigned done = 0;
    while (done == 0) {
        asm volatile(
            "{\n"
            ".reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n"
            "}"
            : "=r"(done)
            : "r"(shared_address(arrived)), "r"(phase)
            : "memory");
    }
}

}  // namespace

// One thread per block: gradients in f32 need no arithmetic, so no data passes through registers.
extern "C" __global__ void __launch_bounds__(32) bulk_add_f32(float *to, const float *from, unsigned long long tiles) {
    __shared__ alignas(128) float slots[kSlots][kTile];
    __shared__ uint64_t arrived[kSlots];
    if (threadIdx.x != 0) {
        return;
    }
    for (uint64_t &one : arrived) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&one)) : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    const unsigned long long step = gridDim.x;
    unsigned long long loads = blockIdx.x;
    for (unsigned slot = 0; slot < kSlots && loads < tiles; ++slot, loads += step) {
        begin_load(slots[slot], from + loads * kTile, &arrived[slot]);
    }
    unsigned slot = 0;
    unsigned phase = 0;
    for (unsigned long long tile = blockIdx.x; tile < tiles; tile += step) {
        await_load(&arrived[slot], phase);
        add_tile(to + tile * kTile, slots[slot]);
        if (tile != blockIdx.x && loads < tiles) {  // the previous slot is free as soon as it has been read
            await_reads<1>();
            const unsigned before = slot == 0 ? kSlots - 1 : slot - 1;
            begin_load(slots[before], from + loads * kTile, &arrived[before]);
            loads += step;
        }
        slot = slot + 1 == kSlots ? 0 : slot + 1;
        phase ^= slot == 0 ? 1 : 0;
    }
    await_all();
}

namespace {

// 16-bit gradients are widened into shared memory.
template <class Gradient>
__device__ __forceinline__ void add_widened(float *to, const Gradient *from, unsigned long long tiles) {
    __shared__ alignas(128) float slots[2][kTile];
    unsigned slot = 0;
    for (unsigned long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        if (threadIdx.x == 0) {
            await_reads<1>();
        }
        __syncthreads();
        const auto at = reinterpret_cast<uintptr_t>(from + tile * kTile);
        for (unsigned i = threadIdx.x; i < kTile / 8; i += blockDim.x) {
            const auto bits = odc::load<16, 16>(at + i * 16);
            float4 *out = reinterpret_cast<float4 *>(&slots[slot][8 * i]);
            out[0] = {odc::element<Gradient>(bits, 0), odc::element<Gradient>(bits, 1), odc::element<Gradient>(bits, 2),
                      odc::element<Gradient>(bits, 3)};
            out[1] = {odc::element<Gradient>(bits, 4), odc::element<Gradient>(bits, 5), odc::element<Gradient>(bits, 6),
                      odc::element<Gradient>(bits, 7)};
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        if (threadIdx.x == 0) {
            add_tile(to + tile * kTile, slots[slot]);
        }
        slot ^= 1;
    }
    if (threadIdx.x == 0) {
        await_all();
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256)
    bulk_add_bf16(float *to, const odc::Bfloat16 *from, unsigned long long tiles) {
    add_widened(to, from, tiles);
}

extern "C" __global__ void __launch_bounds__(256)
    bulk_add_f16(float *to, const odc::Float16 *from, unsigned long long tiles) {
    add_widened(to, from, tiles);
}

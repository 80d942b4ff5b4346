// SPDX-License-Identifier: Apache-2.0
// The plain a += b with which `odc bench` compares additions: loads, adds and stores four elements a thread, in memory that no
// other thread accesses. All addresses are multiples of 16 bytes. make_ptx.sh makes its PTX, which is part of the odc command.
namespace {

struct Bfloat16 {
    unsigned short bits;
};
struct Float16 {
    unsigned short bits;
};

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ double widen(double value) { return value; }
__device__ __forceinline__ float widen(Bfloat16 value) {
    return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}
__device__ __forceinline__ float widen(Float16 value) {
    float wide = 0;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
    return wide;
}

template <class T>
struct alignas(sizeof(T) == 8 ? 16 : 4 * sizeof(T)) Four {
    T x, y, z, w;
};

template <class Value, class Sum>
__device__ __forceinline__ void add(Sum *sums, const Value *values, unsigned long long numel) {
    const unsigned long long group = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (4 * group + 4 <= numel) {
        const Four<Value> b = reinterpret_cast<const Four<Value> *>(values)[group];
        Four<Sum> a = reinterpret_cast<Four<Sum> *>(sums)[group];
        a = {a.x + widen(b.x), a.y + widen(b.y), a.z + widen(b.z), a.w + widen(b.w)};
        reinterpret_cast<Four<Sum> *>(sums)[group] = a;
        return;
    }
#pragma unroll 1
    for (unsigned long long i = 4 * group; i < numel; ++i) {
        sums[i] += widen(values[i]);
    }
}

}  // namespace

#define ODC_PLAIN_ADD(name, Value, Sum)                                                       \
    extern "C" __global__ void name(Sum *__restrict__ sums, const Value *__restrict__ values, \
                                    unsigned long long numel) {                               \
        add(sums, values, numel);                                                             \
    }

ODC_PLAIN_ADD(odc_plain_add_f32, float, float)
ODC_PLAIN_ADD(odc_plain_add_f64, double, double)
ODC_PLAIN_ADD(odc_plain_add_bf16, Bfloat16, float)
ODC_PLAIN_ADD(odc_plain_add_f16, Float16, float)

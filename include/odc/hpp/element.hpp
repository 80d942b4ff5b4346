// SPDX-License-Identifier: Apache-2.0
// Element types, and views of elements in GPU memory.
#ifndef ODC_HPP_ELEMENT_HPP
#define ODC_HPP_ELEMENT_HPP
#include <odc/odc.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "span.hpp"

namespace odc {
inline namespace ODC_ABI {

namespace detail {

inline uint32_t bits_of(float value) noexcept {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float float_of(uint32_t bits) noexcept {
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

}  // namespace detail

// A bfloat16. Conversion from float rounds to nearest, ties to even.
struct Bf16 {
    uint16_t bits;

    Bf16() = default;
    explicit Bf16(float value) noexcept {
        const uint32_t given = detail::bits_of(value);
        bits =
            static_cast<uint16_t>(std::isnan(value) ? given >> 16 | 0x40 : (given + 0x7fff + (given >> 16 & 1)) >> 16);
    }
    operator float() const noexcept { return detail::float_of(uint32_t{bits} << 16); }
};

// An IEEE half-precision number. Conversion from float rounds to nearest, ties to even.
struct F16 {
    uint16_t bits;

    F16() = default;
    explicit F16(float value) noexcept {
        const uint32_t given = detail::bits_of(value), magnitude = given & 0x7fffffff;
        uint32_t half = 0x7c00;  // infinity, from 65536 on
        if (magnitude > 0x7f800000) {
            half = 0x7e00;
        } else if (magnitude < 0x38800000) {  // a subnormal, whose unit is that of the floats from 0.5 to 1
            half = detail::bits_of(detail::float_of(magnitude) + 0.5f) - detail::bits_of(0.5f);
        } else if (magnitude < 0x47800000) {
            half = (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13;
        }
        bits = static_cast<uint16_t>((given >> 16 & 0x8000) | half);
    }
    operator float() const noexcept {
        const uint32_t sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
        if (magnitude < 0x400) {
            return detail::float_of(sign | detail::bits_of(static_cast<float>(magnitude) * 0x1p-24f));
        }
        const uint32_t bias =
            magnitude < 0x7c00 ? 0x38000000 : 0x70000000;  // of the exponents; the largest is the largest
        return detail::float_of(sign | ((magnitude << 13) + bias));
    }
};

namespace detail {
template <class T>
inline constexpr bool kAlwaysFalse = false;
}

// Types of a shard's parameters and gradients: float, double, Bf16, F16; std::byte for opaque parameters; void for none.
template <class T>
struct Element {
    static_assert(detail::kAlwaysFalse<T>,
                  "the halves of a shard are float, double, odc::Bf16, odc::F16, std::byte (parameters) or void");
    static constexpr int32_t type = 0;
    using Sum = void;
};
template <>
struct Element<float> {
    static constexpr int32_t type = ODC_F32;
    using Sum = float;  // the accumulator's type
};
template <>
struct Element<double> {
    static constexpr int32_t type = ODC_F64;
    using Sum = double;
};
template <>
struct Element<Bf16> {
    static constexpr int32_t type = ODC_BF16;
    using Sum = float;
};
template <>
struct Element<F16> {
    static constexpr int32_t type = ODC_F16;
    using Sum = float;
};
template <>
struct Element<std::byte> {
    static constexpr int32_t type = ODC_BYTES;
    using Sum = void;
};
template <>
struct Element<void> {
    static constexpr int32_t type = 0;
    using Sum = void;
};

enum class Memory : int32_t { Host = ODC_HOST_MEMORY, Gpu = ODC_GPU_MEMORY };

// Elements in GPU memory, which the host cannot access.
template <class T>
class GpuSpan {
public:
    constexpr GpuSpan() noexcept = default;
    constexpr GpuSpan(T *data, size_t size) noexcept : data_(data), size_(size) {}
    constexpr operator GpuSpan<const T>() const noexcept { return {data_, size_}; }
    constexpr T *data() const noexcept { return data_; }
    constexpr size_t size() const noexcept { return size_; }

private:
    T *data_ = nullptr;
    size_t size_ = 0;
};

// A CUDA stream (CUstream, cudaStream_t) of the context's GPU, not being captured; by default the legacy default stream.
struct Stream {
    void *handle = nullptr;
};

namespace detail {

struct Nothing {};
template <class T>
using OrNothing = std::conditional_t<std::is_void_v<T>, Nothing, T>;
template <class T, Memory M>
using View = std::conditional_t<M == Memory::Host, span<T>, GpuSpan<T>>;

// Whether T is known to be a view. Other view types must be converted to odc::span.
#if defined(__cpp_lib_span)
template <class T>
inline constexpr bool kIsView = std::ranges::enable_borrowed_range<T>;
#else
template <class T>
inline constexpr bool kIsView = false;
template <class T>
inline constexpr bool kIsView<span<T>> = true;
#endif
template <class T>
inline constexpr bool kIsView<GpuSpan<T>> = true;

// For a Buffer deduced from a parameter Buffer &&.
template <class Buffer>
inline constexpr bool kIsTemporary = !std::is_lvalue_reference_v<Buffer> && !kIsView<std::remove_cv_t<Buffer>>;

}  // namespace detail

}  // namespace ODC_ABI
}  // namespace odc
#endif

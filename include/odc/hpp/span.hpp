// SPDX-License-Identifier: Apache-2.0
// odc::span: std::span if there is one. The name of the inline namespace encodes the header's version and the compile options
// that change types, so that incompatible objects do not link. The ABI tag does the same for return types and variables, which
// are not part of a symbol's name.
#ifndef ODC_HPP_SPAN_HPP
#define ODC_HPP_SPAN_HPP
#include <odc/odc.h>

#include <cstddef>
#include <type_traits>
#include <utility>
#if __cplusplus >= 202002L && __has_include(<span>)
#include <span>
#endif

#if defined(__cpp_lib_span) && defined(__cpp_exceptions)
#define ODC_ABI_WAY with_std_span
#elif defined(__cpp_lib_span)
#define ODC_ABI_WAY with_std_span_without_exceptions
#elif defined(__cpp_exceptions)
#define ODC_ABI_WAY with_own_span
#else
#define ODC_ABI_WAY with_own_span_without_exceptions
#endif
#define ODC_ABI_NAME(major, minor, patch, way) v##major##_##minor##_##patch##_##way
#define ODC_ABI_EXPANDED(major, minor, patch, way) ODC_ABI_NAME(major, minor, patch, way)
#define ODC_ABI \
    ODC_ABI_EXPANDED(ODC_VERSION_MAJOR, ODC_VERSION_MINOR, ODC_VERSION_PATCH, ODC_ABI_WAY) __attribute__((abi_tag))

namespace odc {
inline namespace ODC_ABI {

#if defined(__cpp_lib_span)
template <class T>
using span = std::span<T>;
#else
// The part of std::span that is needed here.
template <class T>
class span {
public:
    constexpr span() noexcept = default;
    constexpr span(T *data, size_t size) noexcept : data_(data), size_(size) {}
    template <size_t kSize>
    constexpr span(T (&array)[kSize]) noexcept : data_(array), size_(kSize) {}
    // From anything with data() and size(): a vector, an array, another span. A temporary only if T is const.
    template <class Range, class Of = std::remove_pointer_t<decltype(std::declval<Range &>().data())>,
              class = std::enable_if_t<std::is_convertible_v<Of (*)[], T (*)[]> &&
                                       (std::is_lvalue_reference_v<Range> || std::is_const_v<T> ||
                                        std::is_same_v<Range, span<std::remove_const_t<T>>>)>>
    constexpr span(Range &&range) noexcept : data_(range.data()), size_(range.size()) {}

    constexpr T *data() const noexcept { return data_; }
    constexpr size_t size() const noexcept { return size_; }
    constexpr bool empty() const noexcept { return size_ == 0; }
    constexpr T *begin() const noexcept { return data_; }
    constexpr T *end() const noexcept { return data_ + size_; }
    constexpr T &operator[](size_t index) const noexcept { return data_[index]; }

private:
    T *data_ = nullptr;
    size_t size_ = 0;
};
#endif

}  // namespace ODC_ABI
}  // namespace odc
#endif

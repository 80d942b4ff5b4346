/* SPDX-License-Identifier: Apache-2.0 */
/* How a table of the CUDA driver's functions is compared with the toolkit's headers. */
#ifndef ODC_TESTS_CUDA_HEADER_H
#define ODC_TESTS_CUDA_HEADER_H

#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstddef>
#include <type_traits>

#define SAME(mine, theirs) static_assert(static_cast<long long>(mine) == static_cast<long long>(theirs))
#define SAME_SIZE(Mine, Theirs) static_assert(sizeof(Mine) == sizeof(Theirs) && alignof(Mine) == alignof(Theirs))
#define SAME_MEMBER(Mine, mine, Theirs, theirs) \
    static_assert(offsetof(Mine, mine) == offsetof(Theirs, theirs) && sizeof(Mine::mine) == sizeof(Theirs::theirs))

// Of one size; if pointers, both, and of what has one size where that is known.
template <class Mine, class Theirs>
constexpr bool same_parameter() {
    if constexpr (std::is_pointer_v<Mine> && std::is_pointer_v<Theirs>) {
        using ToMine = std::remove_pointer_t<Mine>;
        using ToTheirs = std::remove_pointer_t<Theirs>;
        if constexpr (requires { sizeof(ToMine) == sizeof(ToTheirs); }) {
            return std::is_void_v<ToMine> == std::is_void_v<ToTheirs> && sizeof(ToMine) == sizeof(ToTheirs);
        }
        return std::is_void_v<ToMine> == std::is_void_v<ToTheirs>;
    }
    return std::is_pointer_v<Mine> == std::is_pointer_v<Theirs> && sizeof(Mine) == sizeof(Theirs);
}

template <class Result, class... Mine, class... Theirs>
constexpr bool same_parameters(Result (*)(Mine...), CUresult (*)(Theirs...)) {
    static_assert(sizeof(Result) == sizeof(CUresult));
    if constexpr (sizeof...(Mine) == sizeof...(Theirs)) {
        return (same_parameter<Mine, Theirs>() && ...);
    }
    return false;
}

// Theirs of the version that is asked for. Their header makes macros of some names, so members of Functions do not occur.
#define SAME_FUNCTION(name, version, parameters) \
    static_assert(same_parameters(static_cast<Result(*) parameters>(nullptr), PFN_##name##_v##version{}));

#endif

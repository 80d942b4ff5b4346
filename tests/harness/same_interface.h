/* SPDX-License-Identifier: Apache-2.0 */
/* Compares our declarations of a binary interface with its own header. */
#ifndef ODC_TESTS_SAME_INTERFACE_H
#define ODC_TESTS_SAME_INTERFACE_H

#include <cstddef>
#include <type_traits>

#define SAME(mine, theirs) static_assert(static_cast<long long>(mine) == static_cast<long long>(theirs))
#define SAME_SIZE(Mine, Theirs) static_assert(sizeof(Mine) == sizeof(Theirs) && alignof(Mine) == alignof(Theirs))
#define SAME_MEMBER(Mine, mine, Theirs, theirs) \
    static_assert(offsetof(Mine, mine) == offsetof(Theirs, theirs) && sizeof(Mine::mine) == sizeof(Theirs::theirs))

template <class Type>
constexpr size_t size_if_known() {
    if constexpr (requires { sizeof(Type); }) {
        return sizeof(Type);
    }
    return 0;
}

// Whether two types are alike: both pointers or neither, and of one size if it is known.
template <class Mine, class Theirs>
constexpr bool same_parameter() {
    using ToMine = std::remove_pointer_t<Mine>;
    using ToTheirs = std::remove_pointer_t<Theirs>;
    return sizeof(Mine) == sizeof(Theirs) && std::is_pointer_v<Mine> == std::is_pointer_v<Theirs> &&
           std::is_void_v<ToMine> == std::is_void_v<ToTheirs> && size_if_known<ToMine>() == size_if_known<ToTheirs>();
}

template <class MyResult, class... Mine, class TheirResult, class... Theirs>
constexpr bool same_function(MyResult (*)(Mine...), TheirResult (*)(Theirs...)) {
    if constexpr (sizeof...(Mine) == sizeof...(Theirs)) {
        return sizeof(MyResult) == sizeof(TheirResult) && (same_parameter<Mine, Theirs>() && ...);
    }
    return false;
}

#endif

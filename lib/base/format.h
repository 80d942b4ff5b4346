// SPDX-License-Identifier: Apache-2.0
// Texts by fmt, whose format strings the compiler checks. fmt is compiled in format.cc alone: what others include is light,
// and the library needs no libfmt.so. In a namespace of its own it meets no other fmt of a program that links libodc.a.
#pragma once

#define FMT_BEGIN_NAMESPACE \
    namespace fmt {         \
    inline namespace odc {
#define FMT_END_NAMESPACE \
    }                     \
    }
#if __has_include(<fmt/base.h>)
#include <fmt/base.h>  // since fmt 11, whose core.h is the whole of it
#else
#include <fmt/core.h>
#endif

#include <string>

namespace odc {

std::string vformatted(fmt::string_view form, fmt::format_args values);

template <class Form>
fmt::string_view view_of(const Form &form) {
    if constexpr (requires { form.get(); }) {  // since fmt 10; deprecated in 12: the conversion
        return form.get();
    } else {
        return form;
    }
}

// formatted("rank {} is on host \"{}\"", rank, host). Not `format`: where an argument is of std, std::format is found, too.
template <class... Values>
std::string formatted(fmt::format_string<const Values &...> form, const Values &...values) {
    return vformatted(view_of(form), fmt::make_format_args(values...));
}

}  // namespace odc

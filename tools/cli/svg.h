// SPDX-License-Identifier: Apache-2.0
// An SVG picture, for `odc topo` and `odc replay`.
#pragma once

#include <fmt/format.h>

#include <iterator>
#include <string>
#include <utility>

namespace odc_tool {

class Svg {
public:
    static constexpr const char *kInk = "#1d2733";
    static constexpr const char *kFaint = "#5d6b7a";

    template <typename... Parts>
    void add(fmt::format_string<Parts...> format, Parts &&...parts) {
        fmt::format_to(std::back_inserter(elements_), format, std::forward<Parts>(parts)...);
    }
    // `style`: attributes.
    void label(double x, double y, const std::string &style, const std::string &text);

    // The whole document, on white. Sizes are in pixels.
    std::string document(double width, double height, int font_size) const;

    // Escaped for XML.
    static std::string escaped(const std::string &text);

private:
    std::string elements_;
};

}  // namespace odc_tool

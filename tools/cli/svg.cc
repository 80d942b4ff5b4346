// SPDX-License-Identifier: Apache-2.0
#include "cli/svg.h"

namespace odc_tool {

void Svg::label(double x, double y, const std::string &style, const std::string &text) {
    add("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, style, escaped(text));
}

std::string Svg::document(double width, double height, int font_size) const {
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
        "height=\"{1:.0f}\" font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\" font-size=\"{2}\" "
        "fill=\"{3}\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{4}</svg>\n",
        width, height, font_size, kInk, elements_);
}

std::string Svg::escaped(const std::string &text) {
    std::string safe;
    for (const char letter : text) {
        switch (letter) {
            case '&': safe += "&amp;"; break;
            case '<': safe += "&lt;"; break;
            case '>': safe += "&gt;"; break;
            default: safe += letter;
        }
    }
    return safe;
}

}  // namespace odc_tool

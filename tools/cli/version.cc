// SPDX-License-Identifier: Apache-2.0
#include "cli/version.h"

#include <fmt/format.h>
#include <odc/odc.h>

#include <cstdint>
#include <string_view>

namespace odc_tool {

std::string version_text() {
    const uint32_t version = odc_version();
    return fmt::format("{}.{}.{}", version >> 16, version >> 8 & 255, version & 255);
}

std::string layout_version_text() {
    constexpr std::string_view kLayout = ", layout ";  // odc_build's word
    const std::string_view build = odc_build();
    const size_t layout = build.find(kLayout);
    const std::string_view rest = layout < build.size() ? build.substr(layout + kLayout.size()) : "unknown";
    return fmt::format("{}+layout.{}", version_text(), rest.substr(0, rest.find(',')));
}

}  // namespace odc_tool

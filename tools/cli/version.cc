// SPDX-License-Identifier: Apache-2.0
#include "cli/version.h"

#include <fmt/format.h>
#include <odc/odc.h>

#include <cstdint>

namespace odc_tool {

std::string version_text() {
    const uint32_t version = odc_version();
    return fmt::format("{}.{}.{}", version >> 16, version >> 8 & 255, version & 255);
}

}  // namespace odc_tool

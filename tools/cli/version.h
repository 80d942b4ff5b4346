// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace odc_tool {

std::string version_text();  // of the library: "0.1.0"

}  // namespace odc_tool

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace odc_tool {

std::string version_text();  // of the library: "0.1.0"
// With the version of what builds exchange: "0.1.0+layout.17".
std::string layout_version_text();

}  // namespace odc_tool

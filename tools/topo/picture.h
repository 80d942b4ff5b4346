// SPDX-License-Identifier: Apache-2.0
// A machine as a picture: boxes within boxes.
#pragma once

#include "topo/parts.h"

#include <string>

namespace odc_tool {

// SVG.
std::string draw_machine(const Json &machine);

}  // namespace odc_tool

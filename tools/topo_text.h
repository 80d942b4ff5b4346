// SPDX-License-Identifier: Apache-2.0
// What `odc topo` prints of a machine: the tree, how near its devices are, and the routes.
#pragma once

#include "topo_parts.h"

namespace odc_tool {

void print_machine(const Json &machine);

}  // namespace odc_tool

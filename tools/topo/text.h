// SPDX-License-Identifier: Apache-2.0
// The output of `odc topo` for a machine: the tree, the distances of its devices, and the routes.
#pragma once

#include "topo/parts.h"
#include "topo/reasons.h"

namespace odc_tool {

// `reasons`: also explains why each route does not use the other transports.
void print_machine(const Json &machine, Reasons reasons);

}  // namespace odc_tool

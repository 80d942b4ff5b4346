// SPDX-License-Identifier: Apache-2.0
// What `odc topo` prints of a machine: the tree, how near its devices are, and the routes.
#pragma once

#include "topo/parts.h"
#include "topo/reasons.h"

namespace odc_tool {

// `reasons`: why each path does not take the other transports, too.
void print_machine(const Json &machine, Reasons reasons);

}  // namespace odc_tool

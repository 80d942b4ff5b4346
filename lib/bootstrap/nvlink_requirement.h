// SPDX-License-Identifier: Apache-2.0
// What ODC_REQUIRE=nvlink asks for: that ranks of one host are on GPUs with NVLink between every two of them, or on one
// GPU, and that the routes between them are direct.
#pragma once

#include "topology/machine.h"

#include <string>

namespace odc {

struct Membership;

// Returns why the ranks of this host do not meet the requirement; empty: they do. Called once routes to GPU memory are chosen. All
// ranks of the host come to one answer, but each judges its own routes.
std::string unmet_nvlink_requirement(const Membership &membership);
// The same for a machine, whichever of its GPUs the ranks will be on.
std::string unmet_nvlink_requirement(const Machine &machine);

}  // namespace odc

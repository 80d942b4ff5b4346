// SPDX-License-Identifier: Apache-2.0
// What ODC_REQUIRE=nvlink asks for: that ranks of one host are on GPUs with NVLink between every two of them, or on one
// GPU, and that the routes between them are direct.
#pragma once

#include "topology/machine.h"

#include <string>

namespace odc {

struct Membership;

// Why it is not met by the ranks of this host; empty: it is. Routes to GPU memory have been chosen. Every rank of the host
// comes to one answer, but for routes, of which each judges its own.
std::string unmet_nvlink_requirement(const Membership &membership);
// The same of a machine, whichever of its GPUs the ranks will be on.
std::string unmet_nvlink_requirement(const Machine &machine);

}  // namespace odc

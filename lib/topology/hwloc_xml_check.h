// SPDX-License-Identifier: Apache-2.0
// What hwloc takes for granted in XML that it reads: where it is missing, hwloc 2.9 crashes.
#pragma once

#include <string>

namespace odc {

// Throws ODC_ERROR_ARGUMENT, "line 7: ...", at the first thing that keeps `xml` from being a topology. hwloc can still
// refuse what passes.
void check_recording(const std::string &xml);

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// Validates hwloc's XML before hwloc reads it, as hwloc 2.9 crashes on some malformed input.
#pragma once

#include <string>

namespace odc {

// Throws ODC_ERROR_ARGUMENT, "line 7: ...", for the first error. hwloc may still reject what passes.
void check_hwloc_xml(const std::string &xml);

}  // namespace odc

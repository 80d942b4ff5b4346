// SPDX-License-Identifier: Apache-2.0
// Where a machine's tree comes from: the running machine, with what the kernel says about its interfaces, or hwloc's XML.
#pragma once

#include "topology/machine.h"

#include <string>

namespace odc {

// Full: NVML is asked, too, of NVIDIA's GPUs, which takes seconds where they are asleep.
enum class Look { Quick, Full };

// The running machine as this process sees it now, its network namespace included (a quick look takes some 30 ms).
Machine live_machine(Look look);
// A full look as hwloc's XML with our attributes, which recorded_machine reads.
std::string live_recording();
// Throws ODC_ERROR_ARGUMENT when `file` cannot be read or is no topology.
Machine recorded_machine(const std::string &file);
// The one that ODC_TOPOLOGY_XML names, else the running machine.
Machine this_machine(Look look);

}  // namespace odc

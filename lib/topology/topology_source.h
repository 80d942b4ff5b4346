// SPDX-License-Identifier: Apache-2.0
// Reads a Machine from the running machine (hwloc, the kernel's network interfaces, NVML) or from hwloc's XML.
#pragma once

#include "topology/machine.h"

#include <string>

namespace odc {

// Full also queries NVML for NVIDIA GPUs, which takes seconds if the driver has to initialize them.
enum class Look { Quick, Full };

// The running machine as this process sees it now; a quick look takes about 30 ms.
Machine live_machine(Look look);
// The running machine in full, as XML for recorded_machine.
std::string live_topology_xml();
// Throws ODC_ERROR_ARGUMENT if `file` cannot be read or is not a topology.
Machine recorded_machine(const std::string &file);
// The machine that ODC_TOPOLOGY_XML names, else the running machine.
Machine this_machine(Look look);

}  // namespace odc

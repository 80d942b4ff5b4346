// SPDX-License-Identifier: Apache-2.0
// A machine and the paths that it would use, as JSON: what odc_get_topology gives.
#pragma once

#include "routing/nic_address.h"
#include "routing/route_options.h"
#include "topology/machine.h"

#include <string>
#include <vector>

namespace odc {

// Each route to another host is to the same place of a host like this one. `why_no_fabric`: why libfabric cannot be
// used; empty: it can. Throws as ports_of does.
std::string machine_json(const Machine &machine, const RouteOptions &options, const std::vector<ProviderInfo> &infos,
                         const std::string &why_no_fabric);

}  // namespace odc

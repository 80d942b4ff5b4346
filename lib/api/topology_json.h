// SPDX-License-Identifier: Apache-2.0
// A machine and the routes that its ranks would use, as JSON: the output of odc_get_topology.
#pragma once

#include "routing/nic_address.h"
#include "routing/route_options.h"
#include "topology/machine.h"

#include <string>
#include <vector>

namespace odc {

// Routes to another host assume that the peer's memory is at the same place of an equal host. `why_no_fabric`: why libfabric
// cannot be used; empty: it can. Throws as nic_addresses_of does.
std::string machine_json(const Machine &machine, const RouteOptions &options, const std::vector<ProviderInfo> &infos,
                         const std::string &why_no_fabric);

}  // namespace odc

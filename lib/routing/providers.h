// SPDX-License-Identifier: Apache-2.0
// What libfabric has for this machine's NICs, and the negotiation of one provider for the NICs of a job.
#pragma once

#include "routing/nic_address.h"

#include <string>
#include <vector>

namespace odc {

struct RankDescriptor;

// What libfabric has for this machine's NICs (0.3 s); where it cannot be used, why, for every provider.
std::vector<ProviderInfo> query_libfabric();

// Leaves each NIC one provider: of those for sockets the most wanted that all ranks with such NICs have, as their
// libfabrics may be of different versions. A NIC that lacks it keeps its own, and the text that is returned says so, for errors.
std::string negotiate_providers(const std::vector<RankDescriptor *> &ranks);

}  // namespace odc

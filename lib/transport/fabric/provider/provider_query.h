// SPDX-License-Identifier: Apache-2.0
// Queries libfabric's providers on this machine.
#pragma once

#include <string>
#include <vector>

namespace odc {

// Why libfabric cannot be used; empty if it is installed and new enough.
std::string why_not_fabric();
// "1.17": libfabric's version. Throws if it cannot be used.
std::string libfabric_version();

// Every provider and domain with the capabilities that this transport needs. Takes 0.3 s. Throws if libfabric cannot be used.
struct FabricDomain {
    std::string provider;
    std::string domain;
    std::string why_not;  // why this transport does not use it; empty if it does
    bool needs_local;     // local buffers must be registered, so gets are staged
};
std::vector<FabricDomain> fabric_domains();

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// What libfabric offers on this machine.
#pragma once

#include <string>
#include <vector>

namespace odc {

// Empty: libfabric is here and new enough. Else why not.
std::string why_not_fabric();
// "1.17", of the libfabric that is here. Throws where there is none.
std::string libfabric_version();

// What libfabric offers here: every provider and domain with what this transport needs (0.3 s). Throws where there is no
// libfabric.
struct FabricDomain {
    std::string provider;
    std::string domain;
    std::string why_not;  // empty: this transport can use it
    bool needs_local;     // reads are staged: their targets must be registered, too
};
std::vector<FabricDomain> fabric_domains();

}  // namespace odc

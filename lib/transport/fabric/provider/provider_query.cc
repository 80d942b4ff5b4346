// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/provider/provider_query.h"

#include "base/error.h"
#include "transport/fabric/provider/libfabric.h"

namespace odc {

namespace {

// tcp without ofi_rxm has reliable datagrams since 1.18, and known connection bugs until 2.0.
std::string why_too_early(const std::string &provider) {
    return provider == "tcp" ? why_too_old(libfabric().version(), FI_VERSION(2, 0)) : "";
}

}  // namespace

std::string why_not_fabric() {
    try {
        libfabric();
        return "";
    } catch (const Error &error) {
        return error.what();
    }
}

std::string libfabric_version() {
    const uint32_t version = libfabric().version();
    return formatted("{}.{}", FI_MAJOR(version), FI_MINOR(version));
}

std::vector<FabricDomain> fabric_domains() {
    const Info hints = hints_for("", "");
    fi_info *found = nullptr;
    const int code = call_getinfo(hints.get(), &found);
    const Info list(found);
    std::vector<FabricDomain> domains;
    for (const fi_info *one = code == 0 ? list.get() : nullptr; one != nullptr; one = one->next) {
        if (!is_common(*one)) {
            continue;
        }
        const std::string provider = one->fabric_attr->prov_name;
        domains.push_back({provider, one->domain_attr->name, why_too_early(provider),
                           (one->domain_attr->mr_mode & FI_MR_LOCAL) != 0});
    }
    return domains;
}

}  // namespace odc

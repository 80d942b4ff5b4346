// SPDX-License-Identifier: Apache-2.0
#include "routing/providers.h"

#include "base/error.h"
#include "base/settings.h"
#include "routing/rank_descriptor.h"
#include "routing/reach.h"
#include "transport/fabric/provider/provider_query.h"

#include <algorithm>

namespace odc {

namespace {

std::string names_of(uint32_t providers) {
    std::vector<std::string> names;
    for (size_t i = 0; i < kProviders.size(); ++i) {
        if ((providers >> i & 1) != 0) {
            names.emplace_back(kProviders[i].name);
        }
    }
    return joined(names, ", ");
}

constexpr const char *kOneProvider = "all ranks of a job use one provider of plain Ethernet";

uint16_t lowest_bit(uint32_t providers) { return static_cast<uint16_t>(providers & -providers); }

uint16_t sockets_of(const RankDescriptor &rank) {
    uint16_t providers = 0;
    for (const NicAddress &nic : rank.nics) {
        providers |= provider_of(nic).wire == Wire::Sockets ? nic.providers : uint16_t{0};
    }
    return providers;
}

}  // namespace

std::string negotiate_providers(const std::vector<RankDescriptor *> &ranks) {
    std::string text;
    uint16_t common = UINT16_MAX;
    for (const RankDescriptor *rank : ranks) {
        const uint16_t theirs = sockets_of(*rank);
        if (theirs != 0 && common != 0 && (common & theirs) == 0) {
            text = formatted("{}; rank {} has {}, but those before it share only {}", kOneProvider, rank->rank,
                             names_of(theirs), names_of(common));
        }
        common &= theirs != 0 ? theirs : UINT16_MAX;
    }
    for (RankDescriptor *rank : ranks) {
        for (NicAddress &nic : rank->nics) {
            const uint32_t shared = nic.providers & common;
            if (shared == 0 && provider_of(nic).wire == Wire::Sockets && text.empty()) {
                text = formatted("{}, here {}, which {} of rank {} does not have (FI_TCP_IFACE narrows it)",
                                 kOneProvider, names_of(lowest_bit(common)), nic.name, rank->rank);
            }
            nic.providers = lowest_bit(shared != 0 ? shared : nic.providers);
        }
    }
    return text;
}

std::string why_no_provider() {
    std::string why_not = why_not_fabric();
    if (!why_not.empty()) {
        return why_not;
    }
    const std::vector<ProviderInfo> infos = query_libfabric();
    std::string names;
    for (const ProviderRow &row : kProviders) {
        if (std::any_of(infos.begin(), infos.end(),
                        [&](const ProviderInfo &one) { return one.provider == row.name && one.why_not.empty(); })) {
            return "";
        }
        names += formatted("{}{}", names.empty() ? "" : ", ", row.name);
    }
    const std::string filter = environment("FI_PROVIDER");
    return formatted("libfabric {} offers no provider that can be used here: none of {}{}", libfabric_version(), names,
                     filter.empty() ? "" : formatted("; FI_PROVIDER=\"{}\" narrows what it offers", filter));
}

std::vector<ProviderInfo> query_libfabric() {
    std::vector<ProviderInfo> infos;
    const std::string why_not = why_not_fabric();
    if (!why_not.empty()) {
        for (const ProviderRow &row : kProviders) {
            infos.push_back({row.name, "", why_not});
        }
        return infos;
    }
    for (const FabricDomain &one : fabric_domains()) {
        infos.push_back({one.provider, one.domain, one.why_not, one.needs_local ? ReadMode::Staged : ReadMode::Direct});
    }
    if (const std::string filter = environment("FI_PROVIDER"); !filter.empty()) {
        for (const ProviderRow &row : kProviders) {
            infos.push_back(
                {row.name, "", formatted("libfabric does not offer it (FI_PROVIDER=\"{}\" is set)", filter)});
        }
    }
    return infos;
}

}  // namespace odc

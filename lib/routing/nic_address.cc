// SPDX-License-Identifier: Apache-2.0
#include "routing/nic_address.h"

#include "base/error.h"
#include "base/settings.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>

namespace odc {

namespace {

template <size_t N>
bool has_name(const char (&text)[N]) {
    return text[0] != '\0' && std::memchr(text, '\0', N) != nullptr;
}

bool contains(const std::vector<std::string> &names, const std::string &name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

bool serves(const ProviderRow &row, NicKind kind) { return (row.kinds >> static_cast<unsigned>(kind) & 1) != 0; }

std::string domain_name(const ProviderRow &row, const std::string &nic) {
    const bool renamed = nic.starts_with(row.device);
    return (renamed ? row.domain + nic.substr(std::strlen(row.device)) : nic) + row.suffix;
}

// What libfabric says about the NIC with this provider.
ProviderInfo info_of(const ProviderRow &row, const Nic &nic, const std::vector<ProviderInfo> &infos) {
    ProviderInfo answer{row.name, "", "libfabric does not offer it"};
    for (const ProviderInfo &info : infos) {
        if (info.provider == row.name && info.domain == domain_name(row, nic.name)) {
            return info;
        }
        if (info.provider == row.name && info.domain.empty() && !info.why_not.empty()) {
            answer = info;
        }
    }
    return answer;
}

struct Service {
    uint16_t providers = 0;  // as in NicAddress
    uint16_t staged = 0;
    std::string why_not;  // there are none
};

// The most wanted provider that the route options and libfabric have for the NIC, and the others that its peers may meet it by
// at the same addresses.
Service service_of(const Nic &nic, const RouteOptions &options, const std::vector<ProviderInfo> &infos) {
    Service service;
    const ProviderRow *first = nullptr;
    for (size_t i = 0; i < kProviders.size(); ++i) {
        const ProviderRow &row = kProviders[i];
        if (!serves(row, nic.kind) || (first != nullptr && first->addressing != row.addressing)) {
            continue;
        }
        ProviderInfo info = info_of(row, nic, infos);
        if (!options.providers.empty() && !contains(options.providers, row.name)) {
            info.why_not = "ODC_PROVIDER leaves it out";
        } else if (nic.name.size() >= sizeof(NicAddress::name)) {
            info.why_not = formatted("the name is longer than {} letters", sizeof(NicAddress::name) - 1);
        }
        if (!info.why_not.empty()) {
            service.why_not += formatted("{}{}: {}", service.why_not.empty() ? "" : "; ", row.name, info.why_not);
            continue;
        }
        first = first != nullptr ? first : &row;
        const auto bit = static_cast<uint16_t>(1U << i);
        service.providers |= bit;
        service.staged |= info.read_mode == ReadMode::Staged ? bit : uint16_t{0};
    }
    if (first == nullptr && service.why_not.empty()) {
        service.why_not = formatted("no provider serves {}", name_of(nic.kind));
    }
    return service;
}

NicAddress make_address(const Service &service, const Nic &nic, const Network &network, Nearness distance) {
    NicAddress made{};
    nic.name.copy(made.name, sizeof(made.name) - 1);
    std::copy(network.address.begin(), network.address.end(), made.address);
    made.speed = static_cast<uint32_t>(nic.speed);
    made.providers = service.providers;
    made.staged = service.staged;
    made.family = static_cast<uint8_t>(network.family);
    made.prefix = static_cast<uint8_t>(network.prefix);
    made.kind = static_cast<uint8_t>(nic.kind);
    made.distance = static_cast<uint8_t>(distance);
    return made;
}

size_t row_of(uint16_t providers) { return static_cast<size_t>(std::countr_zero(providers)); }

// Adds an address for each subnet of the NIC, or one entry without an address if ranks do not meet by IP addresses there.
void add_addresses(const Service &service, const Nic &nic, Nearness distance, std::vector<NicAddress> &addresses) {
    if (kProviders[row_of(service.providers)].addressing == Addressing::Own || !nic.networks_known) {
        addresses.push_back(make_address(service, nic, {}, distance));
        return;
    }
    for (auto network = nic.networks.begin(); network != nic.networks.end(); ++network) {
        if (std::none_of(nic.networks.begin(), network,
                         [&](const Network &earlier) { return same_subnet(earlier, *network); })) {
            addresses.push_back(make_address(service, nic, *network, distance));
        }
    }
}

auto score(const NicAddress &nic) {
    const bool tunnel = nic.kind == static_cast<uint8_t>(NicKind::Tunnel);
    const bool link_local = is_link_local(network_of(nic));
    return std::tuple(link_local, row_of(nic.providers), tunnel, ~nic.speed, nic.distance, nic.family);
}

// The best kMaxNics, with the best of each provider and IP family, so that unlike hosts still meet.
std::vector<NicAddress> best_of(std::vector<NicAddress> nics) {
    std::stable_sort(nics.begin(), nics.end(),
                     [](const NicAddress &a, const NicAddress &b) { return score(a) < score(b); });
    std::vector<NicAddress> first;
    std::vector<NicAddress> rest;
    for (const NicAddress &nic : nics) {
        const bool is_first = std::none_of(first.begin(), first.end(), [&](const NicAddress &better) {
            return row_of(better.providers) == row_of(nic.providers) && better.family == nic.family;
        });
        (is_first ? first : rest).push_back(nic);
    }
    first.insert(first.end(), rest.begin(), rest.end());
    first.resize(std::min(first.size(), kMaxNics));
    std::stable_sort(first.begin(), first.end(),
                     [](const NicAddress &a, const NicAddress &b) { return score(a) < score(b); });
    return first;
}

// All that can be used, and some of the others.
std::string nics_text(const Machine &machine) {
    std::string names;
    std::vector<std::string> refused;
    for (const Nic &nic : machine.nics) {
        const std::string why = refusal(nic);
        if (why.empty()) {
            names += formatted("{}{}", names.empty() ? "" : ", ", nic.name);
        } else {
            refused.push_back(formatted("{} (refused: {})", nic.name, why));
        }
    }
    names += names.empty() || refused.empty() ? "" : ", ";
    names += listed(refused, ", ");
    return names.empty() ? "no NIC" : names;
}

}  // namespace

bool well_formed(const NicAddress &nic) {
    const int bits = nic.family == 4 ? 32 : nic.family == 6 ? 128 : 0;
    return has_name(nic.name) && nic.providers != 0 && nic.providers >> kProviders.size() == 0 &&
           (nic.family == 0 || nic.family == 4 || nic.family == 6) && nic.prefix <= bits &&
           nic.kind < kNicKinds.size() && nic.distance < kNearness.size();
}

Network network_of(const NicAddress &nic) {
    Network network{nic.family, nic.prefix, {}};
    std::copy(std::begin(nic.address), std::end(nic.address), network.address.begin());
    return network;
}

const ProviderRow &provider_of(const NicAddress &nic) { return kProviders[row_of(nic.providers)]; }

ReadMode read_mode_of(const NicAddress &nic) {
    return (nic.staged >> row_of(nic.providers) & 1) != 0 ? ReadMode::Staged : ReadMode::Direct;
}

std::string domain_of(const NicAddress &nic) { return domain_name(provider_of(nic), nic.name); }

std::vector<ProviderInfo> provider_infos_by_kind(const Machine &machine) {
    std::vector<ProviderInfo> infos;
    for (const Nic &nic : machine.nics) {
        for (const ProviderRow &row : kProviders) {
            if (serves(row, nic.kind)) {
                infos.push_back({row.name, domain_name(row, nic.name), "", row.read_mode});
            }
        }
    }
    return infos;
}

void check_interfaces(const Machine &machine, const RouteOptions &options) {
    for (const std::string &wanted : options.interfaces) {
        if (std::none_of(machine.nics.begin(), machine.nics.end(),
                         [&](const Nic &nic) { return nic.name == wanted; })) {
            fail(ODC_ERROR_ARGUMENT, "{}=\"{}\" is wrong: this machine has no \"{}\"; it has {}",
                 setting_row(Setting::kInterface).name, setting(Setting::kInterface), wanted, nics_text(machine));
        }
    }
}

NicAddresses nic_addresses_of(const Machine &machine, Device memory, const RouteOptions &options,
                              const std::vector<ProviderInfo> &infos) {
    check_interfaces(machine, options);
    NicAddresses found;
    for (size_t i = 0; i < machine.nics.size(); ++i) {
        const Nic &nic = machine.nics[i];
        // Only if it is named, loopback connects the "hosts" of one machine.
        const bool lo = nic.kind == NicKind::Loopback && contains(options.interfaces, nic.name);
        std::string why = lo ? "" : refusal(nic);
        if (why.empty() && !options.interfaces.empty() && !contains(options.interfaces, nic.name)) {
            why = "ODC_INTERFACE leaves it out";
        }
        const Service service = why.empty() ? service_of(nic, options, infos) : Service{0, 0, why};
        if (service.providers == 0) {
            found.refused.push_back({nic.name, service.why_not});
            continue;
        }
        add_addresses(service, nic, nearness(machine, memory, {Device::What::Nic, i}), found.nics);
    }
    found.nics = best_of(std::move(found.nics));
    return found;
}

}  // namespace odc

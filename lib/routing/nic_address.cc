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

// What libfabric says of the NIC by this provider.
ProviderInfo offer_of(const ProviderRow &row, const Nic &nic, const std::vector<ProviderInfo> &infos) {
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
    uint16_t providers = 0;  // as in Port
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
        ProviderInfo info = offer_of(row, nic, infos);
        if (!options.providers.empty() && !contains(options.providers, row.name)) {
            info.why_not = "ODC_PROVIDER leaves it out";
        } else if (nic.name.size() >= sizeof(NicAddress::nic)) {
            info.why_not = say("the name is longer than ", sizeof(NicAddress::nic) - 1, " letters");
        }
        if (!info.why_not.empty()) {
            service.why_not += say(service.why_not.empty() ? "" : "; ", row.name, ": ", info.why_not);
            continue;
        }
        first = first != nullptr ? first : &row;
        const auto bit = static_cast<uint16_t>(1U << i);
        service.providers |= bit;
        service.staged |= info.read_mode == ReadMode::Staged ? bit : uint16_t{0};
    }
    if (first == nullptr && service.why_not.empty()) {
        service.why_not = say("no provider serves ", name_of(nic.kind));
    }
    return service;
}

NicAddress make_port(const Service &service, const Nic &nic, const Network &network, Nearness distance) {
    NicAddress port{};
    nic.name.copy(port.nic, sizeof(port.nic) - 1);
    std::copy(network.address.begin(), network.address.end(), port.address);
    port.speed = static_cast<uint32_t>(nic.speed);
    port.providers = service.providers;
    port.staged = service.staged;
    port.family = static_cast<uint8_t>(network.family);
    port.prefix = static_cast<uint8_t>(network.prefix);
    port.kind = static_cast<uint8_t>(nic.kind);
    port.distance = static_cast<uint8_t>(distance);
    return port;
}

size_t row_of(uint16_t providers) { return static_cast<size_t>(std::countr_zero(providers)); }

// One a subnet of the NIC; one without an address where there are none to meet by.
void add_ports(const Service &service, const Nic &nic, Nearness distance, std::vector<NicAddress> &ports) {
    if (kProviders[row_of(service.providers)].addressing == Addressing::Own || !nic.networks_known) {
        ports.push_back(make_port(service, nic, {}, distance));
        return;
    }
    for (auto network = nic.networks.begin(); network != nic.networks.end(); ++network) {
        if (std::none_of(nic.networks.begin(), network,
                         [&](const Network &earlier) { return same_subnet(earlier, *network); })) {
            ports.push_back(make_port(service, nic, *network, distance));
        }
    }
}

auto score(const NicAddress &port) {
    const bool tunnel = port.kind == static_cast<uint8_t>(NicKind::Tunnel);
    const bool link_local = is_link_local(network_of(port));
    return std::tuple(link_local, row_of(port.providers), tunnel, ~port.speed, port.distance, port.family);
}

// The best kMaxPorts, with the best of each provider and IP family, so that unlike hosts still meet.
std::vector<NicAddress> best_of(std::vector<NicAddress> ports) {
    std::stable_sort(ports.begin(), ports.end(),
                     [](const NicAddress &a, const NicAddress &b) { return score(a) < score(b); });
    std::vector<NicAddress> first;
    std::vector<NicAddress> rest;
    for (const NicAddress &port : ports) {
        const bool is_first = std::none_of(first.begin(), first.end(), [&](const NicAddress &better) {
            return row_of(better.providers) == row_of(port.providers) && better.family == port.family;
        });
        (is_first ? first : rest).push_back(port);
    }
    first.insert(first.end(), rest.begin(), rest.end());
    first.resize(std::min(first.size(), kMaxPorts));
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
            names += say(names.empty() ? "" : ", ", nic.name);
        } else {
            refused.push_back(say(nic.name, " (refused: ", why, ")"));
        }
    }
    names += names.empty() || refused.empty() ? "" : ", ";
    names += listed(refused, ", ");
    return names.empty() ? "no NIC" : names;
}

}  // namespace

bool well_formed(const NicAddress &port) {
    const int bits = port.family == 4 ? 32 : port.family == 6 ? 128 : 0;
    return has_name(port.nic) && port.providers != 0 && port.providers >> kProviders.size() == 0 &&
           (port.family == 0 || port.family == 4 || port.family == 6) && port.prefix <= bits &&
           port.kind < kNicKinds.size() && port.distance < kNearness.size();
}

Network network_of(const NicAddress &port) {
    Network network{port.family, port.prefix, {}};
    std::copy(std::begin(port.address), std::end(port.address), network.address.begin());
    return network;
}

const ProviderRow &provider_of(const NicAddress &port) { return kProviders[row_of(port.providers)]; }

ReadMode landing_at(const NicAddress &port) {
    return (port.staged >> row_of(port.providers) & 1) != 0 ? ReadMode::Staged : ReadMode::Direct;
}

std::string domain_of(const NicAddress &port) { return domain_name(provider_of(port), port.nic); }

std::vector<ProviderInfo> offers_by_kind(const Machine &machine) {
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
    for (const std::string &wished : options.interfaces) {
        if (std::none_of(machine.nics.begin(), machine.nics.end(),
                         [&](const Nic &nic) { return nic.name == wished; })) {
            fail(ODC_ERROR_ARGUMENT, setting_row(Setting::kInterface).name, "=\"", setting(Setting::kInterface),
                 "\" is wrong: this machine has no \"", wished, "\"; it has ", nics_text(machine));
        }
    }
}

NicAddresses nic_addresses_of(const Machine &machine, Device memory, const RouteOptions &options,
                              const std::vector<ProviderInfo> &infos) {
    check_interfaces(machine, options);
    NicAddresses found;
    for (size_t i = 0; i < machine.nics.size(); ++i) {
        const Nic &nic = machine.nics[i];
        // Asked for by name, it joins the "hosts" of one machine.
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
        add_ports(service, nic, nearness(machine, memory, {Device::What::Nic, i}), found.ports);
    }
    found.ports = best_of(std::move(found.ports));
    return found;
}

}  // namespace odc

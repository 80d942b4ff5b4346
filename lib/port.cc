// SPDX-License-Identifier: Apache-2.0
#include "port.h"

#include "settings.h"
#include "status.h"

#include <algorithm>
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

// Why libfabric does not offer the NIC by this provider; empty: it does.
std::string not_offered(const ProviderRow &row, const Nic &nic, const std::vector<Offer> &offers) {
    std::string why = "libfabric does not offer it";
    for (const Offer &offer : offers) {
        if (offer.provider != row.name) {
            continue;
        }
        if (offer.domain == domain_name(row, nic.name)) {
            return offer.why_not;
        }
        if (offer.domain.empty() && !offer.why_not.empty()) {
            why = offer.why_not;
        }
    }
    return why;
}

// The most wanted provider that the wishes and libfabric have for it; nullptr, with the reason, for none.
const ProviderRow *provider_for(const Nic &nic, const Wishes &wishes, const std::vector<Offer> &offers,
                                std::string &why) {
    for (const ProviderRow &row : kProviders) {
        if (!serves(row, nic.kind)) {
            continue;
        }
        std::string why_not = not_offered(row, nic, offers);
        if (!wishes.providers.empty() && !contains(wishes.providers, row.name)) {
            why_not = "ODC_PROVIDER leaves it out";
        } else if (domain_name(row, nic.name).size() >= sizeof(Port::domain)) {
            why_not = say("the name is longer than ", sizeof(Port::domain) - 1 - std::strlen(row.suffix), " letters");
        }
        if (why_not.empty()) {
            return &row;
        }
        why += say(why.empty() ? "" : "; ", row.name, ": ", why_not);
    }
    if (why.empty()) {
        why = say("no provider serves ", name_of(nic.kind));
    }
    return nullptr;
}

Port make_port(const ProviderRow &row, const Nic &nic, const Network &network, Nearness distance) {
    Port port{};
    std::string(row.name).copy(port.provider, sizeof(port.provider) - 1);
    domain_name(row, nic.name).copy(port.domain, sizeof(port.domain) - 1);
    std::copy(network.address.begin(), network.address.end(), port.address);
    port.speed = static_cast<uint32_t>(nic.speed);
    port.family = static_cast<uint8_t>(network.family);
    port.prefix = static_cast<uint8_t>(network.prefix);
    port.kind = static_cast<uint8_t>(nic.kind);
    port.distance = static_cast<uint8_t>(distance);
    return port;
}

// One a subnet of the NIC; one without an address where there are none to meet by.
void add_ports(const ProviderRow &row, const Nic &nic, Nearness distance, std::vector<Port> &ports) {
    if (row.addressing == Addressing::Own || !nic.networks_known) {
        ports.push_back(make_port(row, nic, {}, distance));
        return;
    }
    for (auto network = nic.networks.begin(); network != nic.networks.end(); ++network) {
        if (std::none_of(nic.networks.begin(), network,
                         [&](const Network &earlier) { return same_subnet(earlier, *network); })) {
            ports.push_back(make_port(row, nic, *network, distance));
        }
    }
}

auto score(const Port &port) {
    const bool tunnel = port.kind == static_cast<uint8_t>(NicKind::Tunnel);
    const bool link_local = is_link_local(network_of(port));
    return std::tuple(link_local, provider_row(port), tunnel, ~port.speed, port.distance, port.family);
}

// The best kMaxPorts, with the best of each provider and IP family, so that unlike hosts still meet.
std::vector<Port> best_of(std::vector<Port> ports) {
    std::stable_sort(ports.begin(), ports.end(), [](const Port &a, const Port &b) { return score(a) < score(b); });
    std::vector<Port> first;
    std::vector<Port> rest;
    for (const Port &port : ports) {
        const bool is_first = std::none_of(first.begin(), first.end(), [&](const Port &better) {
            return provider_row(better) == provider_row(port) && better.family == port.family;
        });
        (is_first ? first : rest).push_back(port);
    }
    first.insert(first.end(), rest.begin(), rest.end());
    first.resize(std::min(first.size(), kMaxPorts));
    std::stable_sort(first.begin(), first.end(), [](const Port &a, const Port &b) { return score(a) < score(b); });
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

bool well_formed(const Port &port) {
    const int bits = port.family == 4 ? 32 : port.family == 6 ? 128 : 0;
    return has_name(port.provider) && has_name(port.domain) && provider_row(port) < kProviders.size() &&
           (port.family == 0 || port.family == 4 || port.family == 6) && port.prefix <= bits &&
           port.kind < kNicKinds.size() && port.distance < kNearness.size();
}

Network network_of(const Port &port) {
    Network network{port.family, port.prefix, {}};
    std::copy(std::begin(port.address), std::end(port.address), network.address.begin());
    return network;
}

size_t provider_row(const Port &port) {
    const auto row = std::find_if(kProviders.begin(), kProviders.end(),
                                  [&](const ProviderRow &one) { return std::strcmp(one.name, port.provider) == 0; });
    return static_cast<size_t>(row - kProviders.begin());
}

std::string nic_name(const Port &port) {
    std::string name = port.domain;
    const size_t place = provider_row(port);
    const ProviderRow row = place < kProviders.size() ? kProviders[place] : ProviderRow{};
    if (name.ends_with(row.suffix)) {
        name.resize(name.size() - std::strlen(row.suffix));
    }
    return name.starts_with(row.domain) ? row.device + name.substr(std::strlen(row.domain)) : name;
}

std::vector<Offer> offers_by_kind(const Machine &machine) {
    std::vector<Offer> offers;
    for (const Nic &nic : machine.nics) {
        for (const ProviderRow &row : kProviders) {
            if (serves(row, nic.kind)) {
                offers.push_back({row.name, domain_name(row, nic.name), ""});
            }
        }
    }
    return offers;
}

void check_interfaces(const Machine &machine, const Wishes &wishes) {
    for (const std::string &wished : wishes.interfaces) {
        if (std::none_of(machine.nics.begin(), machine.nics.end(),
                         [&](const Nic &nic) { return nic.name == wished; })) {
            fail(ODC_ERROR_ARGUMENT, setting_row(Setting::kInterface).name, "=\"", setting(Setting::kInterface),
                 "\" is wrong: this machine has no \"", wished, "\"; it has ", nics_text(machine));
        }
    }
}

Ports ports_of(const Machine &machine, Device memory, const Wishes &wishes, const std::vector<Offer> &offers) {
    check_interfaces(machine, wishes);
    Ports found;
    for (size_t i = 0; i < machine.nics.size(); ++i) {
        const Nic &nic = machine.nics[i];
        // Asked for by name, it joins the "hosts" of one machine.
        const bool lo = nic.kind == NicKind::Loopback && contains(wishes.interfaces, nic.name);
        std::string why = lo ? "" : refusal(nic);
        if (why.empty() && !wishes.interfaces.empty() && !contains(wishes.interfaces, nic.name)) {
            why = "ODC_INTERFACE leaves it out";
        }
        const ProviderRow *row = why.empty() ? provider_for(nic, wishes, offers, why) : nullptr;
        if (row == nullptr) {
            found.refused.push_back({nic.name, why});
            continue;
        }
        add_ports(*row, nic, nearness(machine, memory, {Device::What::Nic, i}), found.ports);
    }
    found.ports = best_of(std::move(found.ports));
    return found;
}

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
#include "topology/nic.h"

#include "base/error.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <system_error>

namespace odc {

namespace {

int system_family(int family) { return family == 4 ? AF_INET : AF_INET6; }

bool has_own_addressing(NicKind kind) {
    return kind == NicKind::Efa || kind == NicKind::Slingshot || kind == NicKind::OmniPath;
}

}  // namespace

Network parse_network(const std::string &text) {
    const size_t slash = text.find('/');
    if (slash == std::string::npos) {
        return {};
    }
    Network network{text.find(':') == std::string::npos ? 4 : 6, 0, {}};
    const int bits = network.family == 4 ? 32 : 128;
    const char *end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + slash + 1, end, network.prefix);
    const std::string address = text.substr(0, slash);
    if (error != std::errc() || stop != end || network.prefix < 0 || network.prefix > bits ||
        inet_pton(system_family(network.family), address.c_str(), network.address.data()) != 1) {
        return {};
    }
    return network;
}

std::string network_text(const Network &network) {
    char address[INET6_ADDRSTRLEN] = "";
    inet_ntop(system_family(network.family), network.address.data(), address, sizeof(address));
    return formatted("{}/{}", address, network.prefix);
}

std::string subnet_text(const Network &network) {
    Network subnet = network;
    for (size_t i = 0; i < subnet.address.size(); ++i) {
        const int bits = std::clamp(network.prefix - static_cast<int>(i) * 8, 0, 8);
        subnet.address[i] &= static_cast<uint8_t>(0xff00 >> bits);
    }
    return network_text(subnet);
}

bool is_link_local(const Network &network) {
    const auto &bytes = network.address;
    return network.family == 4 ? bytes[0] == 169 && bytes[1] == 254 : bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80;
}

bool same_subnet(const Network &a, const Network &b) {
    if (a.family != b.family || a.prefix != b.prefix) {
        return false;
    }
    const auto whole = static_cast<size_t>(a.prefix) / 8;
    const unsigned rest = static_cast<unsigned>(a.prefix) % 8;
    const unsigned differ = whole < a.address.size() ? unsigned{a.address[whole]} ^ b.address[whole] : 0;
    return std::equal(a.address.begin(), a.address.begin() + static_cast<std::ptrdiff_t>(whole), b.address.begin()) &&
           differ >> (8 - rest) == 0;
}

std::string refusal(const Nic &nic) {
    switch (nic.kind) {
        case NicKind::Loopback: return "loopback reaches this host only";
        case NicKind::Bridge: return "a bridge without a physical port (docker, libvirt, CNI) reaches this host only";
        case NicKind::Dummy: return "a dummy interface reaches nobody";
        default: break;
    }
    switch (nic.state) {
        case NicState::Down: return "it is down";
        case NicState::NoCarrier: return "it has no carrier: no cable, or nothing at the other end";
        case NicState::Elsewhere: return "it belongs to another network namespace";
        default: break;
    }
    if (nic.networks_known && nic.networks.empty() && !has_own_addressing(nic.kind)) {
        return nic.kind == NicKind::InfiniBand || nic.kind == NicKind::RoCE
                   ? "no interface of it has an IP address, by which its ranks would meet"
                   : "it has no IP address";
    }
    return "";
}

}  // namespace odc

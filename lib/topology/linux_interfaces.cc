// SPDX-License-Identifier: Apache-2.0
#include "topology/linux_interfaces.h"

#include "base/error.h"
#include "base/fd.h"
#include "topology/host.h"

#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

namespace odc {

namespace {

namespace fs = std::filesystem;

// Queries the drivers of interfaces by ioctl on a socket of the namespace.
class Drivers {
public:
    Drivers() : socket_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
        if (socket_.get() < 0) {
            fail_errno("a socket to ask about network interfaces");
        }
    }

    // "veth", "bridge", "tun", ...; "" if unknown.
    std::string driver(const std::string &interface) const {
        ethtool_drvinfo answer{};
        answer.cmd = ETHTOOL_GDRVINFO;
        return ask(interface, &answer) ? answer.driver : "";
    }

    int64_t speed(const std::string &interface) const {
        ethtool_cmd answer{};
        answer.cmd = ETHTOOL_GSET;
        if (!ask(interface, &answer)) {
            return 0;
        }
        const uint32_t speed = ethtool_cmd_speed(&answer);
        return speed == static_cast<uint32_t>(SPEED_UNKNOWN) ? 0 : speed;
    }

    // ARPHRD_*.
    int hardware(const std::string &interface) const {
        ifreq request = named(interface);
        return ioctl(socket_.get(), SIOCGIFHWADDR, &request) == 0 ? request.ifr_hwaddr.sa_family : ARPHRD_VOID;
    }

private:
    static ifreq named(const std::string &interface) {
        ifreq request{};
        interface.copy(request.ifr_name, sizeof(request.ifr_name) - 1);
        return request;
    }

    bool ask(const std::string &interface, void *answer) const {
        ifreq request = named(interface);
        request.ifr_data = static_cast<char *>(answer);
        return ioctl(socket_.get(), SIOCETHTOOL, &request) == 0;
    }

    Fd socket_;
};

// Whether the interface, or one below it (a bridge's port, a VLAN's or bond's link), is a physical device.
bool has_physical_port(const std::string &interface) {
    std::error_code none;
    const fs::path folder = fs::path("/sys/class/net") / interface;
    if (fs::exists(folder / "device", none)) {
        return true;
    }
    for (const fs::directory_entry &entry : fs::directory_iterator(folder, none)) {
        const std::string name = entry.path().filename();
        if (name.starts_with("lower_") && has_physical_port(name.substr(6))) {
            return true;
        }
    }
    return false;
}

NicKind kind_of(const Drivers &drivers, const std::string &name, unsigned flags) {
    if ((flags & IFF_LOOPBACK) != 0) {
        return NicKind::Loopback;
    }
    const std::string driver = drivers.driver(name);
    const int hardware = drivers.hardware(name);
    if (driver == "bridge" || driver == "openvswitch") {
        return has_physical_port(name) ? NicKind::Ethernet : NicKind::Bridge;
    }
    if (driver == "dummy" || driver == "ifb") {
        return NicKind::Dummy;
    }
    if (hardware == ARPHRD_INFINIBAND) {
        return NicKind::IPoIB;
    }
    if (driver == "tun" || driver == "wireguard" || driver == "vxlan" || driver == "geneve" ||
        hardware != ARPHRD_ETHER) {
        return NicKind::Tunnel;
    }
    std::error_code none;
    return fs::exists(fs::path("/sys/class/net") / name / "phy80211", none) ? NicKind::Wifi : NicKind::Ethernet;
}

Network network_of(const sockaddr &address, const sockaddr &mask) {
    Network network;
    const uint8_t *bits = nullptr;
    size_t bytes = 0;
    if (address.sa_family == AF_INET) {
        const auto &in = reinterpret_cast<const sockaddr_in &>(address).sin_addr;
        bits = reinterpret_cast<const uint8_t *>(&reinterpret_cast<const sockaddr_in &>(mask).sin_addr);
        bytes = sizeof(in);
        network.family = 4;
        std::memcpy(network.address.data(), &in, bytes);
    } else {
        const auto &in = reinterpret_cast<const sockaddr_in6 &>(address).sin6_addr;
        bits = reinterpret_cast<const uint8_t *>(&reinterpret_cast<const sockaddr_in6 &>(mask).sin6_addr);
        bytes = sizeof(in);
        network.family = 6;
        std::memcpy(network.address.data(), &in, bytes);
    }
    for (size_t i = 0; i < bytes; ++i) {
        network.prefix += std::popcount(bits[i]);
    }
    return network;
}

}  // namespace

std::vector<Interface> interfaces() {
    ifaddrs *list = nullptr;
    if (getifaddrs(&list) != 0) {
        fail_errno("getifaddrs");
    }
    const std::unique_ptr<ifaddrs, void (*)(ifaddrs *)> owner(list, freeifaddrs);
    const Drivers drivers;
    std::vector<Interface> found;
    for (const ifaddrs *one = list; one != nullptr; one = one->ifa_next) {
        const std::string name = std::string(one->ifa_name).substr(0, std::string(one->ifa_name).find(':'));
        auto entry = std::find_if(found.begin(), found.end(), [&](const Interface &row) { return row.name == name; });
        if (entry == found.end()) {
            const NicState state = (one->ifa_flags & IFF_UP) == 0        ? NicState::Down
                                   : (one->ifa_flags & IFF_RUNNING) == 0 ? NicState::NoCarrier
                                                                         : NicState::Up;
            found.push_back({name, kind_of(drivers, name, one->ifa_flags), state, drivers.speed(name), {}});
            entry = found.end() - 1;
        }
        const int family = one->ifa_addr != nullptr ? one->ifa_addr->sa_family : AF_UNSPEC;
        if ((family == AF_INET || family == AF_INET6) && one->ifa_netmask != nullptr) {
            entry->networks.push_back(network_of(*one->ifa_addr, *one->ifa_netmask));
        }
    }
    return found;
}

RdmaPort rdma_port(const std::string &device) {
    const std::string port = formatted("/sys/class/infiniband/{}/ports/1/", device);
    RdmaPort found;
    if (first_line(port + "link_layer") == "Ethernet") {
        found.kind = NicKind::RoCE;
    }
    double gigabits = 0;  // of "400 Gb/sec (4X NDR)"
    if (std::istringstream(first_line(port + "rate")) >> gigabits) {
        found.speed = static_cast<int64_t>(gigabits * 1000);
    }
    return found;
}

std::string cxi_device(const std::string &bus_id) {
    std::error_code none;
    for (const fs::directory_entry &entry :
         fs::directory_iterator(formatted("/sys/bus/pci/devices/{}/cxi", bus_id), none)) {
        return entry.path().filename();
    }
    return "";
}

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
#include "topo/parts.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

namespace odc_tool {

namespace {

std::string joined(const std::vector<std::string> &texts, const char *between) {
    std::string text;
    for (const std::string &one : texts) {
        if (!one.empty()) {
            text += (text.empty() ? "" : between) + one;
        }
    }
    return text;
}

// The memory whose route uses the NIC, and memory without a route to which the NIC is nearest.
std::string users(const Json &machine, const std::string &nic) {
    std::vector<std::string> used;
    std::vector<std::string> nearest;
    for (const Json &route : machine.at("to_another_host")) {
        if (route.contains("nic") && route.at("nic") == nic) {
            (route.at("transport").is_null() ? nearest : used).push_back(route.at("from"));
        }
    }
    return joined({used.empty() ? "" : "used by " + joined(used, ", "),
                   nearest.empty() ? "" : "nearest to " + joined(nearest, ", ")},
                  "; ");
}

Part nic_part(const Json &machine, const Json &nic) {
    const std::string state = nic.at("state");
    std::vector<std::string> details = {nic.at("kind"), speed_text(nic.at("speed_mbit"))};
    if (state != "up") {
        details.push_back(state);
    }
    if (nic.at("networks").is_array()) {
        for (const Json &network : nic.at("networks")) {
            details.push_back(network);
        }
    }
    const bool unused = nic.contains("why_not");
    return {unused ? Part::Kind::UnusedNic : Part::Kind::Nic,
            nic.at("name"),
            joined(details, ", "),
            unused ? "not used: " + nic.at("why_not").get<std::string>() : users(machine, nic.at("name")),
            {}};
}

// Its links to the other GPUs: "NVSwitch to 7 GPUs, P2P to 7, native atomics to 7".
std::string links(const Json &machine, const std::string &gpu) {
    int nvlink = 0;
    int nvswitch = 0;
    int p2p = 0;
    int atomics = 0;
    for (const Json &link : machine.at("gpu_links")) {
        const Json &ends = link.at("between");
        if (std::find(ends.begin(), ends.end(), gpu) != ends.end()) {
            nvlink += link.at("nvlink") == "NVLink" ? 1 : 0;
            nvswitch += link.at("nvlink") == "NVSwitch" ? 1 : 0;
            p2p += link.at("p2p") == true ? 1 : 0;
            atomics += link.at("atomics") == true ? 1 : 0;
        }
    }
    std::string text;
    for (const auto &[what, count] : {std::pair("NVLink", nvlink), std::pair("NVSwitch", nvswitch),
                                      std::pair("P2P", p2p), std::pair("native atomics", atomics)}) {
        if (count > 0) {
            text += text.empty() ? fmt::format("{} to {} GPU{}", what, count, count == 1 ? "" : "s")
                                 : fmt::format(", {} to {}", what, count);
        }
    }
    return text;
}

Part gpu_part(const Json &machine, const Json &gpu) {
    const std::string model = joined({gpu.at("vendor"), text_or(gpu.at("model"), "")}, " ");
    return {
        Part::Kind::Gpu, gpu.at("name"), joined({model, gpu.at("bus_id")}, ", "), links(machine, gpu.at("name")), {}};
}

// The PCI devices on a NUMA node, or, if the node is null, in a package but on none of its nodes: those of one switch in one
// group.
std::vector<Part> devices_at(const Json &machine, const Json &package, const Json &numa_node) {
    std::vector<Part> found;
    const auto add = [&](const Json &device, Part part) {
        const bool here =
            device.at("numa_node") == numa_node && (!numa_node.is_null() || device.at("package") == package);
        if (device.at("bus_id").is_null() || !here) {
            return;
        }
        if (device.at("switch").is_null()) {
            found.push_back(std::move(part));
            return;
        }
        const std::string name = "PCIe switch " + device.at("switch").get<std::string>();
        auto group = std::find_if(found.begin(), found.end(), [&](const Part &one) { return one.name == name; });
        if (group == found.end()) {
            found.push_back({Part::Kind::Switch, name, "", "", {}});
            group = found.end() - 1;
        }
        group->parts.push_back(std::move(part));
    };
    for (const Json &gpu : machine.at("gpus")) {
        add(gpu, gpu_part(machine, gpu));
    }
    for (const Json &nic : machine.at("nics")) {
        add(nic, nic_part(machine, nic));
    }
    return found;
}

void append(std::vector<Part> &parts, std::vector<Part> more) {
    std::move(more.begin(), more.end(), std::back_inserter(parts));
}

// The parts of a package, or (null) those outside packages.
std::vector<Part> inside(const Json &machine, const Json &package) {
    std::vector<Part> parts;
    for (const Json &node : machine.at("numa_nodes")) {
        if (node.at("package") == package) {
            const uint64_t bytes = node.at("bytes");
            const int cores = node.at("cores");
            parts.push_back({Part::Kind::NumaNode, node.at("name"),
                             fmt::format("{} core{}, {:.4g} GiB", cores, cores == 1 ? "" : "s",
                                         static_cast<double>(bytes) / (1 << 30)),
                             "", devices_at(machine, package, node.at("name"))});
        }
    }
    append(parts, devices_at(machine, package, nullptr));
    return parts;
}

std::string counted(size_t count, const char *noun) {
    return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace

std::string transport_text(const Json &route) {
    if (route.at("transport").is_null()) {
        return "none";
    }
    return route.at("transport").get<std::string>() + (route.at("access") == "staged" ? ", staged" : "");
}

std::string text_or(const Json &text, const std::string &otherwise) {
    return text.is_null() ? otherwise : text.get<std::string>();
}

std::string speed_text(const Json &mbit) {
    if (mbit.is_null()) {
        return "";
    }
    const auto speed = mbit.get<double>();
    return speed < 1000 ? fmt::format("{} Mbit/s", speed) : fmt::format("{} Gbit/s", speed / 1000);
}

Part parts_of(const Json &machine) {
    Part root{Part::Kind::Machine,
              text_or(machine.at("host"), "a machine"),
              joined({counted(machine.at("packages").size(), "package"),
                      counted(machine.at("numa_nodes").size(), "NUMA node"), counted(machine.at("gpus").size(), "GPU"),
                      counted(machine.at("nics").size(), "NIC")},
                     ", "),
              "",
              {}};
    for (const Json &package : machine.at("packages")) {
        root.parts.push_back({Part::Kind::Package, package.at("name"), text_or(package.at("model"), ""), "",
                              inside(machine, package.at("name"))});
    }
    append(root.parts, inside(machine, nullptr));
    Part others{Part::Kind::Others, "interfaces without a PCI device", "", "", {}};
    for (const Json &nic : machine.at("nics")) {
        if (nic.at("bus_id").is_null()) {
            others.parts.push_back(nic_part(machine, nic));
        }
    }
    if (!others.parts.empty()) {
        root.parts.push_back(std::move(others));
    }
    return root;
}

}  // namespace odc_tool

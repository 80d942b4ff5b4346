// SPDX-License-Identifier: Apache-2.0
#include "topology/machine.h"

#include "base/error.h"

#include <hwloc/distances.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <system_error>

namespace odc {

namespace {

struct Vendor {
    unsigned id;  // PCI
    const char *name;
};

// Vendors of compute GPUs. Other display adapters (a management controller's, an emulated one) are ignored.
constexpr std::array<Vendor, 3> kGpuVendors = {{{0x10de, "NVIDIA"}, {0x1002, "AMD"}, {0x8086, "Intel"}}};
constexpr unsigned kAmazon = 0x1d0f;
constexpr unsigned kCornelis = 0x434e;
constexpr unsigned kIntel = 0x8086;
constexpr unsigned kDisplay = 0x03;           // PCI base classes
constexpr unsigned kAccelerator = 0x12;       // AMD's Instinct
constexpr size_t kIpoibAddress = 20 * 3 - 1;  // characters of an IPoIB hardware address of 20 bytes

std::string info(hwloc_obj_t object, const char *name) {
    const char *value = object != nullptr ? hwloc_obj_get_info_by_name(object, name) : nullptr;
    return value != nullptr ? value : "";
}

std::string text_bus_id(const hwloc_obj_attr_u::hwloc_pcidev_attr_s &pci) {
    char text[32];
    std::snprintf(text, sizeof(text), "%04x:%02x:%02x.%01x", static_cast<unsigned>(pci.domain), unsigned{pci.bus},
                  unsigned{pci.dev}, unsigned{pci.func});
    return text;
}

hwloc_obj_t pci_above(hwloc_obj_t object) {
    while (object != nullptr && object->type != HWLOC_OBJ_PCI_DEVICE) {
        object = object->parent;
    }
    return object;
}

std::string model_of(hwloc_obj_t pci) {
    const std::string model = info(pci, "PCIDevice");
    const std::string vendor = info(pci, "PCIVendor");
    return vendor.empty() || model.empty() ? model : formatted("{} {}", vendor, model);
}

// The index of the only package (or NUMA node) whose processors (or memory) `object` shares; -1 if there are none or several.
int only_one(hwloc_topology_t tree, hwloc_obj_type_t type, hwloc_obj_t object) {
    int found = -1;
    for (hwloc_obj_t one = nullptr; (one = hwloc_get_next_obj_by_type(tree, type, one)) != nullptr;) {
        const bool meets = type == HWLOC_OBJ_NUMANODE ? hwloc_bitmap_isset(object->nodeset, one->os_index) != 0
                                                      : hwloc_bitmap_intersects(object->cpuset, one->cpuset) != 0;
        if (meets && found >= 0) {
            return -1;
        }
        if (meets) {
            found = static_cast<int>(one->os_index);
        }
    }
    return found;
}

Site site_of(hwloc_topology_t tree, hwloc_obj_t device) {
    Site site;
    hwloc_obj_t above = device->parent;
    for (; above != nullptr && hwloc_obj_type_is_io(above->type); above = above->parent) {
        if (above->type == HWLOC_OBJ_BRIDGE) {
            const hwloc_obj_attr_u::hwloc_bridge_attr_s &bridge = above->attr->bridge;
            const bool host = bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST;
            site.bridges.push_back(host ? formatted("host bridge {}:{}", bridge.downstream.pci.domain,
                                                    unsigned{bridge.downstream.pci.secondary_bus})
                                        : text_bus_id(bridge.upstream.pci));
        }
    }
    std::reverse(site.bridges.begin(), site.bridges.end());
    while (above != nullptr && above->cpuset == nullptr) {
        above = above->parent;  // a Misc object has no cpuset
    }
    if (above != nullptr) {
        site.package = only_one(tree, HWLOC_OBJ_PACKAGE, above);
        site.numa_node = only_one(tree, HWLOC_OBJ_NUMANODE, above);
    }
    return site;
}

void read_processors(hwloc_topology_t tree, Machine &machine) {
    for (hwloc_obj_t one = nullptr; (one = hwloc_get_next_obj_by_type(tree, HWLOC_OBJ_PACKAGE, one)) != nullptr;) {
        machine.packages.push_back({static_cast<int>(one->os_index), info(one, "CPUModel")});
    }
    for (hwloc_obj_t one = nullptr; (one = hwloc_get_next_obj_by_type(tree, HWLOC_OBJ_NUMANODE, one)) != nullptr;) {
        const NumaNode node{static_cast<int>(one->os_index), only_one(tree, HWLOC_OBJ_PACKAGE, one),
                            hwloc_bitmap_weight(one->cpuset), one->attr->numanode.local_memory};
        if (node.cores > 0 || node.bytes > 0) {
            machine.numa_nodes.push_back(node);
        }
    }
}

// From hwloc's PCI database, else from the driver or NVML, else the PCI id.
std::string gpu_model(hwloc_obj_t pci) {
    std::string model = info(pci, "PCIDevice");
    for (hwloc_obj_t one = pci->io_first_child; one != nullptr && model.empty(); one = one->next_sibling) {
        model = info(one, "GPUModel");
    }
    if (model.empty()) {
        model = info(pci, kGpuInfo);
    }
    char number[16];
    std::snprintf(number, sizeof(number), "[%04x:%04x]", unsigned{pci->attr->pcidev.vendor_id},
                  unsigned{pci->attr->pcidev.device_id});
    return model.empty() ? number : model;
}

// A GPU and its object.
struct GpuObject {
    Gpu gpu;
    hwloc_obj_t object;
};

std::vector<GpuObject> read_gpus(hwloc_topology_t tree, Machine &machine) {
    std::vector<GpuObject> gpus;
    for (hwloc_obj_t one = nullptr; (one = hwloc_get_next_pcidev(tree, one)) != nullptr;) {
        const hwloc_obj_attr_u::hwloc_pcidev_attr_s &pci = one->attr->pcidev;
        const auto *vendor = std::find_if(kGpuVendors.begin(), kGpuVendors.end(),
                                          [&](const Vendor &row) { return row.id == pci.vendor_id; });
        const unsigned base_class = pci.class_id >> 8;
        if (vendor != kGpuVendors.end() && (base_class == kDisplay || base_class == kAccelerator)) {
            gpus.push_back(
                {{"", text_bus_id(pci), vendor->name, gpu_model(one), info(one, kUuidInfo), site_of(tree, one)}, one});
        }
    }
    // GPUs that only NVML reports.
    for (hwloc_obj_t one = nullptr; (one = hwloc_get_next_obj_by_type(tree, HWLOC_OBJ_MISC, one)) != nullptr;) {
        if (one->name != nullptr && hwloc_obj_get_info_by_name(one, kGpuInfo) != nullptr) {
            gpus.push_back(
                {{"", one->name, kGpuVendors[0].name, info(one, kGpuInfo), info(one, kUuidInfo), site_of(tree, one)},
                 one});
        }
    }
    std::sort(gpus.begin(), gpus.end(),
              [](const GpuObject &a, const GpuObject &b) { return a.gpu.bus_id < b.gpu.bus_id; });
    for (GpuObject &one : gpus) {
        one.gpu.name = formatted("gpu{}", machine.gpus.size());
        machine.gpus.push_back(one.gpu);
    }
    return gpus;
}

// The index of the GPU with this bus id; the number of GPUs if there is none.
size_t gpu_at(const Machine &machine, const std::string &bus_id) {
    const auto found =
        std::find_if(machine.gpus.begin(), machine.gpus.end(), [&](const Gpu &one) { return one.bus_id == bus_id; });
    return static_cast<size_t>(found - machine.gpus.begin());
}

// Reads hwloc's NVLink matrix, which lstopo records: GPUs and switches in any order. Links through a switch become links
// between GPUs.
void read_nvlink(hwloc_topology_t tree, Machine &machine) {
    hwloc_distances_s *matrix = nullptr;
    unsigned count = 1;
    if (hwloc_distances_get_by_name(tree, "NVLinkBandwidth", &count, &matrix, 0) != 0 || count == 0) {
        return;
    }
    bool nvswitch = false;
    for (unsigned i = 0; i < matrix->nbobjs; ++i) {
        const char *subtype = matrix->objs[i] != nullptr ? matrix->objs[i]->subtype : nullptr;
        nvswitch |= subtype != nullptr && std::strcmp(subtype, "NVSwitch") == 0;
    }
    if (nvswitch) {
        hwloc_distances_transform(tree, matrix, HWLOC_DISTANCES_TRANSFORM_MERGE_SWITCH_PORTS, nullptr, 0);
        hwloc_distances_transform(tree, matrix, HWLOC_DISTANCES_TRANSFORM_TRANSITIVE_CLOSURE, nullptr, 0);
    }
    const size_t gpus = machine.gpus.size();
    for (unsigned i = 0; i < matrix->nbobjs; ++i) {
        for (unsigned j = 0; j < matrix->nbobjs; ++j) {
            const size_t from = gpu_at(machine, pci_bus_id(matrix->objs[i]));
            const size_t to = gpu_at(machine, pci_bus_id(matrix->objs[j]));
            if (from != to && from < gpus && to < gpus) {
                const bool linked = matrix->values[i * matrix->nbobjs + j] > 0;
                machine.links[from * gpus + to].nvlink = !linked    ? NvLink::None
                                                         : nvswitch ? NvLink::Switch
                                                                    : NvLink::Direct;
            }
        }
    }
    hwloc_distances_release(tree, matrix);
}

// Reads one GPU's attribute about its links to the others. `take` returns false for an invalid value.
template <class Take>
void read_peers(const Machine &machine, const GpuObject &gpu, const char *name, Take take) {
    try {
        for (const PeerValue &peer : parse_peers(info(gpu.object, name))) {
            const size_t to = gpu_at(machine, peer.bus_id);
            if (to == machine.gpus.size() || peer.bus_id == gpu.gpu.bus_id) {
                fail(ODC_ERROR_ARGUMENT, "\"{}\" is not another GPU", peer.bus_id);
            }
            if (!take(to, peer.value)) {
                fail(ODC_ERROR_ARGUMENT, "\"{}\" of {} is not a valid value", peer.value, peer.bus_id);
            }
        }
    } catch (const Error &error) {
        fail(error.status(), "the GPU {} has {} \"{}\", where {}", gpu.gpu.bus_id, name, info(gpu.object, name),
             error.what());
    }
}

void read_links(hwloc_topology_t tree, const std::vector<GpuObject> &gpus, Machine &machine) {
    const size_t count = gpus.size();
    machine.links.resize(count * count);
    read_nvlink(tree, machine);
    for (size_t from = 0; from < count; ++from) {
        const auto link = [&](size_t to) -> GpuLink & { return machine.links[from * count + to]; };
        read_peers(machine, gpus[from], kNvLinkInfo,
                   [&](size_t to, const std::string &value) { return parse_nvlink(value, link(to)); });
        read_peers(machine, gpus[from], kP2pInfo,
                   [&](size_t to, const std::string &value) { return parse_ability(value, link(to).p2p); });
        read_peers(machine, gpus[from], kAtomicsInfo,
                   [&](size_t to, const std::string &value) { return parse_ability(value, link(to).atomics); });
    }
    for (size_t i = 0; i < count; ++i) {
        for (size_t j = 0; j < i; ++j) {
            const GpuLink link = both_ways(machine.link(i, j), machine.link(j, i));
            machine.links[i * count + j] = machine.links[j * count + i] = link;
        }
    }
    if (count > 1 && std::count(machine.links.begin(), machine.links.end(), GpuLink{}) == std::ssize(machine.links)) {
        const std::string why_not = info(hwloc_get_root_obj(tree), kNvmlInfo);
        machine.why_no_links = why_not.empty() ? "NVML reports nothing about these GPUs" : why_not;
    }
}

// The enumerator named `text`; throws if there is none.
template <class Enum, size_t N>
Enum one_of(const std::array<const char *, N> &names, const std::string &text, hwloc_obj_t object, const char *what) {
    for (size_t i = 0; i < N; ++i) {
        if (text == names[i]) {
            return static_cast<Enum>(i);
        }
    }
    std::string valid;
    for (const char *name : names) {
        valid += formatted("{}{}", valid.empty() ? "" : ", ", name);
    }
    fail(ODC_ERROR_ARGUMENT, "\"{}\" has {} \"{}\"; it must be one of {}", object->name, what, text, valid);
}

int64_t read_speed(hwloc_obj_t object, const std::string &text) {
    int64_t speed = 0;
    const char *end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, speed);
    if (!text.empty() && (error != std::errc() || stop != end || speed < 0 || speed > 100'000'000)) {
        fail(ODC_ERROR_ARGUMENT, "\"{}\" has {} \"{}\"; it must be a number of Mbit/s", object->name, kSpeedInfo, text);
    }
    return speed;
}

std::vector<Network> read_networks(hwloc_obj_t object, const std::string &text) {
    std::vector<Network> networks;
    std::istringstream words(text);
    for (std::string word; words >> word;) {
        networks.push_back(parse_network(word));
        if (networks.back().family == 0) {
            fail(ODC_ERROR_ARGUMENT, "\"{}\" has {} \"{}\", where \"{}\" is not address/prefix", object->name,
                 kNetworksInfo, text, word);
        }
    }
    return networks;
}

NicKind kind_of(hwloc_obj_t object, hwloc_obj_t pci) {
    const std::string recorded = info(object, kKindInfo);
    if (!recorded.empty()) {
        return one_of<NicKind>(kNicKinds, recorded, object, kKindInfo);
    }
    const unsigned vendor = pci != nullptr ? pci->attr->pcidev.vendor_id : 0;
    const unsigned device = pci != nullptr ? pci->attr->pcidev.device_id : 0;
    if (object->type == HWLOC_OBJ_OS_DEVICE && object->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS) {
        const bool omni_path = vendor == kCornelis || (vendor == kIntel && (device == 0x24f0 || device == 0x24f1));
        return vendor == kAmazon ? NicKind::Efa : omni_path ? NicKind::OmniPath : NicKind::InfiniBand;
    }
    if (std::strcmp(object->name, "lo") == 0) {
        return NicKind::Loopback;
    }
    return info(object, "Address").size() == kIpoibAddress ? NicKind::IPoIB : NicKind::Ethernet;
}

NicState state_of(hwloc_obj_t object) {
    const std::string recorded = info(object, kStateInfo);
    if (!recorded.empty()) {
        return one_of<NicState>(kNicStates, recorded, object, kStateInfo);
    }
    const std::string port = info(object, "Port1State");  // verbs: 4 is active
    return port.empty() ? NicState::Unknown : port == "4" ? NicState::Up : NicState::Down;
}

Nic read_nic(hwloc_topology_t tree, hwloc_obj_t object) {
    hwloc_obj_t pci = pci_above(object);
    Nic nic;
    nic.name = object->name;
    nic.kind = kind_of(object, pci);
    nic.state = state_of(object);
    nic.speed = read_speed(object, info(object, kSpeedInfo));
    nic.bus_id = pci_bus_id(object);
    nic.model = model_of(pci);
    nic.site = site_of(tree, pci != nullptr ? pci : object);
    const char *networks = hwloc_obj_get_info_by_name(object, kNetworksInfo);
    nic.networks_known = networks != nullptr;
    nic.networks = read_networks(object, networks != nullptr ? networks : "");
    return nic;
}

// An OpenFabrics device gets the addresses of the interfaces on its PCI function, whose kind tells InfiniBand from RoCE.
void adopt_networks(Machine &machine, Nic &device) {
    for (const Nic &nic : machine.nics) {
        if (nic.bus_id != device.bus_id || device.bus_id.empty()) {
            continue;
        }
        if (device.kind == NicKind::InfiniBand && nic.kind == NicKind::Ethernet) {
            device.kind = NicKind::RoCE;
        }
        device.networks_known |= nic.networks_known;
        device.networks.insert(device.networks.end(), nic.networks.begin(), nic.networks.end());
        if (device.speed == 0) {
            device.speed = nic.speed;
        }
    }
}

void read_nics(hwloc_topology_t tree, Machine &machine) {
    std::vector<Nic> devices;
    for (hwloc_obj_t one = nullptr; (one = hwloc_get_next_osdev(tree, one)) != nullptr;) {
        if (one->name != nullptr && one->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK) {
            machine.nics.push_back(read_nic(tree, one));
            const std::string cxi = info(one, kCxiInfo);
            if (!cxi.empty()) {
                devices.push_back(machine.nics.back());
                devices.back().name = cxi;
                devices.back().kind = NicKind::Slingshot;
            }
        } else if (one->name != nullptr && one->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS) {
            devices.push_back(read_nic(tree, one));
        }
    }
    for (hwloc_obj_t one = nullptr; (one = hwloc_get_next_obj_by_type(tree, HWLOC_OBJ_MISC, one)) != nullptr;) {
        if (one->name != nullptr && hwloc_obj_get_info_by_name(one, kKindInfo) != nullptr) {
            machine.nics.push_back(read_nic(tree, one));
        }
    }
    for (Nic &device : devices) {
        if (device.kind == NicKind::InfiniBand || device.kind == NicKind::RoCE) {
            adopt_networks(machine, device);
        }
    }
    machine.nics.insert(machine.nics.begin(), devices.begin(), devices.end());
    for (size_t i = 0; i < machine.nics.size(); ++i) {
        for (size_t j = 0; j < i; ++j) {
            if (machine.nics[i].name == machine.nics[j].name) {
                fail(ODC_ERROR_ARGUMENT, "two interfaces are named \"{}\"", machine.nics[i].name);
            }
        }
    }
}

Site site_at(const Machine &machine, Device device) {
    switch (device.what) {
        case Device::What::Gpu: return machine.gpus[device.index].site;
        case Device::What::Nic: return machine.nics[device.index].site;
        case Device::What::NumaNode: break;
    }
    return {machine.numa_nodes[device.index].package, machine.numa_nodes[device.index].index, {}};
}

size_t shared_bridges(const Site &a, const Site &b) {
    const auto end = std::mismatch(a.bridges.begin(), a.bridges.end(), b.bridges.begin(), b.bridges.end()).first;
    return static_cast<size_t>(end - a.bridges.begin());
}

}  // namespace

std::string pci_bus_id(hwloc_obj_t object) {
    hwloc_obj_t pci = pci_above(object);
    return pci != nullptr ? text_bus_id(pci->attr->pcidev) : "";
}

std::string device_name(const Machine &machine, Device device) {
    switch (device.what) {
        case Device::What::Gpu: return machine.gpus[device.index].name;
        case Device::What::Nic: return machine.nics[device.index].name;
        case Device::What::NumaNode: break;
    }
    return formatted("numa{}", machine.numa_nodes[device.index].index);
}

Nearness nearness(const Machine &machine, Device a, Device b) {
    if (a == b) {
        return Nearness::Self;
    }
    if (a.what == Device::What::Gpu && b.what == Device::What::Gpu) {
        switch (machine.link(a.index, b.index).nvlink) {
            case NvLink::Direct: return Nearness::NvLink;
            case NvLink::Switch: return Nearness::NvSwitch;
            case NvLink::None:
            case NvLink::Unknown: break;
        }
    }
    return nearness_by_pci(machine, a, b);
}

Nearness nearness_by_pci(const Machine &machine, Device a, Device b) {
    if (a == b) {
        return Nearness::Self;
    }
    const Site one = site_at(machine, a);
    const Site other = site_at(machine, b);
    const size_t bridges = shared_bridges(one, other);
    if (bridges > 0) {
        return bridges > 1 ? Nearness::Switch : Nearness::HostBridge;
    }
    if (one.numa_node >= 0 && other.numa_node >= 0 && one.numa_node == other.numa_node) {
        return Nearness::NumaNode;
    }
    if (one.package >= 0 && other.package >= 0) {
        return one.package == other.package ? Nearness::Package : Nearness::OtherPackage;
    }
    return Nearness::Unknown;
}

std::string shared_switch(const Machine &machine, const std::string &bus_id, const Site &site) {
    const auto card = [](const std::string &function) { return function.substr(0, function.find('.')); };
    size_t most = 0;
    const auto look = [&](const std::string &other_id, const Site &other) {
        if (card(other_id) != card(bus_id)) {
            most = std::max(most, shared_bridges(site, other));
        }
    };
    for (const Gpu &gpu : machine.gpus) {
        look(gpu.bus_id, gpu.site);
    }
    for (const Nic &nic : machine.nics) {
        look(nic.bus_id, nic.site);
    }
    return most > 1 ? site.bridges[most - 1] : "";
}

Machine read_machine(hwloc_topology_t tree) {
    Machine machine;
    machine.host = info(hwloc_get_root_obj(tree), "HostName");
    read_processors(tree, machine);
    read_links(tree, read_gpus(tree, machine), machine);
    read_nics(tree, machine);
    return machine;
}

}  // namespace odc

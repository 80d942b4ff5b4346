// SPDX-License-Identifier: Apache-2.0
#include "topology/topology_source.h"

#include "base/error.h"
#include "base/fork_gate.h"
#include "base/settings.h"
#include "topology/hwloc_xml_check.h"
#include "topology/linux_interfaces.h"
#include "topology/nvml_gpus.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <system_error>

namespace odc {

namespace {

struct DestroyTree {
    void operator()(hwloc_topology_t tree) const {
        const ForkSection here(Locks::Hwloc);
        hwloc_topology_destroy(tree);
    }
};
using Tree = std::unique_ptr<hwloc_topology, DestroyTree>;

// A large machine's takes about 1 MB.
constexpr uintmax_t kLongestXml = 64 << 20;

// Not loaded yet; configured for the objects that machine.cc reads.
Tree new_tree() {
    check_fork(Locks::Hwloc);
    const ForkSection here(Locks::Hwloc);
    hwloc_topology_t tree = nullptr;
    if (hwloc_topology_init(&tree) != 0) {
        fail_errno("hwloc_topology_init");
    }
    hwloc_topology_set_io_types_filter(tree, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    hwloc_topology_set_type_filter(tree, HWLOC_OBJ_MISC, HWLOC_TYPE_FILTER_KEEP_ALL);
    return Tree(tree);
}

hwloc_obj_t interface_object(hwloc_topology_t tree, const std::string &name) {
    for (hwloc_obj_t one = nullptr; (one = hwloc_get_next_osdev(tree, one)) != nullptr;) {
        if (one->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK && one->name == name) {
            return one;
        }
    }
    // The interface has no PCI device, or /sys does not show it.
    return hwloc_topology_insert_misc_object(tree, hwloc_get_root_obj(tree), name.c_str());
}

void add_speed(hwloc_obj_t object, int64_t speed) {
    if (speed > 0) {
        hwloc_obj_add_info(object, kSpeedInfo, std::to_string(speed).c_str());
    }
}

void describe(hwloc_obj_t object, const Interface &facts) {
    std::string networks;
    for (const Network &network : facts.networks) {
        networks += formatted("{}{}", networks.empty() ? "" : " ", network_text(network));
    }
    hwloc_obj_add_info(object, kKindInfo, name_of(facts.kind));
    hwloc_obj_add_info(object, kStateInfo, name_of(facts.state));
    hwloc_obj_add_info(object, kNetworksInfo, networks.c_str());
    add_speed(object, facts.speed);
}

// Adds what hwloc does not know of the interfaces, as attributes.
void describe_interfaces(hwloc_topology_t tree) {
    for (const Interface &facts : interfaces()) {
        if (hwloc_obj_t object = interface_object(tree, facts.name)) {
            describe(object, facts);
        }
    }
    for (hwloc_obj_t one = nullptr; (one = hwloc_get_next_osdev(tree, one)) != nullptr;) {
        if (one->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS) {
            const RdmaPort port = rdma_port(one->name);
            if (port.kind == NicKind::RoCE) {
                hwloc_obj_add_info(one, kKindInfo, name_of(port.kind));
            }
            add_speed(one, port.speed);
        } else if (one->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK) {
            if (hwloc_obj_get_info_by_name(one, kStateInfo) == nullptr) {
                hwloc_obj_add_info(one, kStateInfo, name_of(NicState::Elsewhere));
            }
            const std::string cxi = cxi_device(pci_bus_id(one));
            if (!cxi.empty()) {
                hwloc_obj_add_info(one, kCxiInfo, cxi.c_str());
            }
        }
    }
}

// Adds a Misc object for a GPU that hwloc does not show, as where /sys lacks PCI.
hwloc_obj_t gpu_object(hwloc_topology_t tree, const std::string &bus_id) {
    for (hwloc_obj_t one = nullptr; (one = hwloc_get_next_pcidev(tree, one)) != nullptr;) {
        if (pci_bus_id(one) == bus_id) {
            return one;
        }
    }
    return hwloc_topology_insert_misc_object(tree, hwloc_get_root_obj(tree), bus_id.c_str());
}

// Adds "0000:43:00.0=NVSwitch:18 ...". `value` returns a link's text; "" is omitted.
template <class Value>
void add_peers(hwloc_obj_t object, const char *name, const GpuReport &report, const GpuFacts &gpu, Value value) {
    std::string text;
    for (size_t to = 0; to < report.gpus.size(); ++to) {
        if (const std::string word = value(gpu.links[to]); !word.empty()) {
            text += formatted("{}{}={}", text.empty() ? "" : " ", report.gpus[to].bus_id, word);
        }
    }
    if (!text.empty()) {
        hwloc_obj_add_info(object, name, text.c_str());
    }
}

void describe_gpus(hwloc_topology_t tree) {
    const GpuReport report = gpus_by_nvml();
    if (!report.why_not.empty()) {
        hwloc_obj_add_info(hwloc_get_root_obj(tree), kNvmlInfo, report.why_not.c_str());
    }
    for (const GpuFacts &gpu : report.gpus) {
        hwloc_obj_t object = gpu_object(tree, gpu.bus_id);
        if (object == nullptr) {
            continue;
        }
        hwloc_obj_add_info(object, kGpuInfo, gpu.model.c_str());
        hwloc_obj_add_info(object, kUuidInfo, gpu.uuid.c_str());
        add_peers(object, kNvLinkInfo, report, gpu, nvlink_value);
        add_peers(object, kP2pInfo, report, gpu, [](const GpuLink &link) { return ability_value(link.p2p); });
        add_peers(object, kAtomicsInfo, report, gpu, [](const GpuLink &link) { return ability_value(link.atomics); });
    }
}

int load(const Tree &tree) {
    const ForkSection here(Locks::Hwloc);
    return hwloc_topology_load(tree.get());
}

Tree live_tree(Look look) {
    Tree tree = new_tree();
    // As in host.cc. Besides, pci leaks memory (hwloc 2.9), gl tries to connect to ten X displays, and describe_gpus() replaces
    // nvml.
    for (const char *component : {"x86", "pci", "gl", "opencl", "cuda", "nvml"}) {
        hwloc_topology_set_components(tree.get(), HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
    }
    if (load(tree) != 0) {
        fail_errno("hwloc cannot read this machine");
    }
    describe_interfaces(tree.get());
    if (look == Look::Full) {
        describe_gpus(tree.get());
    }
    return tree;
}

std::string text_of(const std::string &file) {
    // Reading a pipe might block for ever.
    std::error_code none;
    if (std::filesystem::exists(file, none) && !std::filesystem::is_regular_file(file, none)) {
        fail(ODC_ERROR_ARGUMENT, "the recorded machine \"{}\" cannot be read: it is not a regular file", file);
    }
    if (const auto bytes = std::filesystem::file_size(file, none); !none && bytes > kLongestXml) {
        fail(ODC_ERROR_ARGUMENT,
             "the recorded machine \"{}\" cannot be read: it has {} bytes, and no machine takes more than {}", file,
             bytes, kLongestXml);
    }
    errno = 0;
    std::ifstream stream(file);
    std::string xml{std::istreambuf_iterator<char>(stream), {}};
    if (xml.empty()) {
        fail(ODC_ERROR_ARGUMENT, "the recorded machine \"{}\" cannot be read: {}", file,
             errno != 0 ? std::generic_category().message(errno) : "it is empty");
    }
    return xml;
}

// `file`: for the error.
Tree recorded_tree(const std::string &file, const std::string &xml) {
    static constexpr const char *kAdvice = "; record one with `odc topo --save FILE` or `lstopo FILE.xml`";
    try {
        check_hwloc_xml(xml);
    } catch (const Error &error) {
        fail(error.status(), "\"{}\" is not a topology that hwloc can read: {}{}", file, error.what(), kAdvice);
    }
    Tree tree = new_tree();
    // hwloc counts the terminating zero.
    if (hwloc_topology_set_xmlbuffer(tree.get(), xml.c_str(), static_cast<int>(xml.size() + 1)) != 0 ||
        load(tree) != 0) {
        fail(ODC_ERROR_ARGUMENT, "\"{}\" is not a topology that hwloc can read{}", file, kAdvice);
    }
    return tree;
}

}  // namespace

Machine live_machine(Look look) { return read_machine(live_tree(look).get()); }

std::string live_topology_xml() {
    const Tree tree = live_tree(Look::Full);
    char *text = nullptr;
    int length = 0;
    if (hwloc_topology_export_xmlbuffer(tree.get(), &text, &length, 0) != 0) {
        fail_errno("hwloc cannot write this machine as XML");
    }
    const std::string xml(text);
    hwloc_free_xmlbuffer(tree.get(), text);
    return xml;
}

Machine recorded_machine(const std::string &file) {
    const std::string xml = text_of(file);
    const Tree tree = recorded_tree(file, xml);
    try {
        return read_machine(tree.get());
    } catch (const Error &error) {
        fail(error.status(), "in the recorded machine \"{}\": {}", file, error.what());
    }
}

Machine this_machine(Look look) {
    const std::string file = setting(Setting::kTopologyXml);
    if (file.empty()) {
        return live_machine(look);
    }
    try {
        return recorded_machine(file);
    } catch (const Error &error) {
        fail(error.status(), "{}=\"{}\" is wrong: {}", setting_row(Setting::kTopologyXml).name, file, error.what());
    }
}

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// A machine as a value: its packages, NUMA nodes, GPUs and NICs, and the distances between them. Built from hwloc's tree of the
// running machine or of a recorded one (topology_source.h).
#pragma once

#include "topology/gpu_link.h"
#include "topology/nic.h"

#include <hwloc.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace odc {

struct Package {
    int index = 0;  // the kernel's; so is NumaNode::index
    std::string model;
};

struct NumaNode {
    int index = 0;
    int package = -1;  // -1: shared by all
    int cores = 0;     // hardware threads
    uint64_t bytes = 0;
};

struct Gpu {
    std::string name;  // "gpu0", numbered by PCI bus id
    std::string bus_id;
    std::string vendor;
    std::string model;
    std::string uuid;  // "GPU-5af8..."; "": unknown
    Site site;
};

// Nearest first.
enum class Nearness : uint8_t { Self, NvLink, NvSwitch, Switch, HostBridge, NumaNode, Package, OtherPackage, Unknown };

inline constexpr std::array<const char *, 9> kNearness = {"itself",
                                                          "by NVLink",
                                                          "by NVSwitch",
                                                          "on the same PCIe switch",
                                                          "on the same PCIe host bridge",
                                                          "on the same NUMA node",
                                                          "in the same package",
                                                          "in another package",
                                                          "at an unknown distance"};

constexpr const char *name_of(Nearness nearness) { return kNearness[static_cast<size_t>(nearness)]; }

struct Machine {
    std::string host;  // its host name; "" if unknown
    std::vector<Package> packages;
    std::vector<NumaNode> numa_nodes;
    std::vector<Gpu> gpus;
    std::vector<Nic> nics;
    std::vector<GpuLink> links;  // gpus x gpus, symmetric; the diagonal is unknown
    std::string why_no_links;    // why no link is known; "" if one is

    const GpuLink &link(size_t a, size_t b) const { return links[a * gpus.size() + b]; }
};

// A NUMA node, GPU or NIC by its index in the machine's list.
struct Device {
    enum class What { NumaNode, Gpu, Nic } what = What::NumaNode;
    size_t index = 0;

    bool operator==(const Device &) const = default;
};

std::string device_name(const Machine &machine, Device device);  // "numa0", "gpu3", "eth0"
Nearness nearness(const Machine &machine, Device a, Device b);
// The same, ignoring NVLink.
Nearness nearness_by_pci(const Machine &machine, Device a, Device b);
// The bus id of the PCIe switch (or root port) that a device shares with another card; "" if there is none.
std::string shared_switch(const Machine &machine, const std::string &bus_id, const Site &site);

// Attributes that topology_source.cc adds to hwloc's objects of interfaces and GPUs, for what hwloc does not record.
inline constexpr const char *kKindInfo = "odc.kind";          // a name of kNicKinds
inline constexpr const char *kStateInfo = "odc.state";        // a name of kNicStates
inline constexpr const char *kSpeedInfo = "odc.speed";        // Mbit/s
inline constexpr const char *kNetworksInfo = "odc.networks";  // "192.0.2.2/24 fd00::2/64"; may be empty
inline constexpr const char *kCxiInfo = "odc.cxi";            // of a Slingshot interface: its cxi device
inline constexpr const char *kGpuInfo = "odc.gpu";            // a GPU's model, by NVML
inline constexpr const char *kUuidInfo = "odc.uuid";          // of a GPU
inline constexpr const char *kNvmlInfo = "odc.nvml";          // of the machine: why NVML reports nothing about its GPUs
// A GPU's links to each other GPU (gpu_link.h).
inline constexpr const char *kNvLinkInfo = "odc.nvlink";
inline constexpr const char *kP2pInfo = "odc.p2p";
inline constexpr const char *kAtomicsInfo = "odc.atomics";

std::string pci_bus_id(hwloc_obj_t object);  // of its PCI function; "" if it has none

// `tree`: a loaded topology with I/O and Misc objects. Throws ODC_ERROR_ARGUMENT if one of the attributes above has an invalid
// value.
Machine read_machine(hwloc_topology_t tree);

}  // namespace odc

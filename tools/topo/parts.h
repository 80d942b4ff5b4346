// SPDX-License-Identifier: Apache-2.0
// A machine as a tree of described parts, which `odc topo` prints and draws.
#pragma once

#include "cli/json.h"

#include <string>
#include <vector>

namespace odc_tool {

struct Part {
    enum class Kind { Machine, Package, NumaNode, Switch, Others, Gpu, Nic, UnusedNic };

    Kind kind = Kind::Machine;
    std::string name;
    std::string detail;
    std::string note;  // of a NIC: which memory uses it, or why none does; of a GPU: its links to others
    std::vector<Part> parts;
};

// From odc_get_topology's JSON. The last part holds the interfaces without a PCI device.
Part parts_of(const Json &machine);

std::string speed_text(const Json &mbit);  // "400 Gbit/s"; "" for null
std::string text_or(const Json &text, const std::string &otherwise);
std::string transport_text(const Json &route);  // "fabric", "fabric, staged", "none"

}  // namespace odc_tool

// SPDX-License-Identifier: Apache-2.0
#include "topo_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace odc_tool {

namespace {

struct Distance {
    const char *words;  // odc_get_topology's
    const char *cell;
};

constexpr std::array<Distance, 9> kDistances = {{{"itself", "-"},
                                                 {"by NVLink", "nvlink"},
                                                 {"by NVSwitch", "nvswitch"},
                                                 {"on the same PCIe switch", "switch"},
                                                 {"on the same PCIe host bridge", "bridge"},
                                                 {"on the same NUMA node", "numa"},
                                                 {"in the same package", "package"},
                                                 {"in another package", "far"},
                                                 {"at an unknown distance", "?"}}};

// Its place in kDistances; the last for words that it has not.
size_t distance_of(const std::string &words) {
    const auto *row =
        std::find_if(kDistances.begin(), kDistances.end() - 1, [&](const Distance &one) { return one.words == words; });
    return static_cast<size_t>(row - kDistances.begin());
}

// Without the blanks at its end.
void print_line(const std::string &line) { fmt::print("{}\n", line.substr(0, line.find_last_not_of(' ') + 1)); }

void print_tree(const Part &part, const std::string &indent) {
    size_t width = 0;
    for (const Part &one : part.parts) {
        width = one.detail.empty() ? width : std::max(width, one.name.size());
    }
    for (const Part &one : part.parts) {
        const bool last = &one == &part.parts.back();
        std::string line = fmt::format("{}{} {:<{}}  {}", indent, last ? "└─" : "├─", one.name, width, one.detail);
        line += one.note.empty() ? "" : "; " + one.note;
        print_line(line);
        print_tree(one, indent + (last ? "   " : "│  "));
    }
}

// Every device by every device that holds memory: NICs have rows only.
void print_distances(const Json &machine) {
    const Json &devices = machine.at("devices");
    const Json &distances = machine.at("distances");
    const size_t columns = machine.at("numa_nodes").size() + machine.at("gpus").size();
    size_t width = 0;
    for (const Json &name : devices) {
        width = std::max(width, name.get<std::string>().size());
    }
    std::string heads = fmt::format("  {:<{}}", "", width);
    for (size_t column = 0; column < columns; ++column) {
        heads += fmt::format("  {:<8}", devices.at(column).get<std::string>());
    }
    print_line("\nhow near:\n" + heads);
    std::vector<bool> seen(kDistances.size());
    for (size_t row = 0; row < devices.size(); ++row) {
        std::string line = fmt::format("  {:<{}}", devices.at(row).get<std::string>(), width);
        for (size_t column = 0; column < columns; ++column) {
            const size_t distance = distance_of(distances.at(row).at(column));
            seen[distance] = true;
            line += fmt::format("  {:<8}", kDistances[distance].cell);
        }
        print_line(line);
    }
    std::string legend;
    for (size_t i = 1; i < kDistances.size(); ++i) {
        if (seen[i]) {
            legend += fmt::format("{}{}: {}", legend.empty() ? "" : ", ", kDistances[i].cell, kDistances[i].words);
        }
    }
    fmt::print("  {}\n", legend);
}

// The reasons against the other transports where they are wanted, or none is left.
std::string route_text(const Json &route, Reasons reasons) {
    const bool reaches = !route.at("transport").is_null();
    std::string words = "none";
    if (!reaches && !route.at("why").is_null()) {
        words += ": " + route.at("why").get<std::string>();
    } else if (reaches) {
        words = fmt::format("{}: {}", path_text(route), route.at("why").get<std::string>());
    }
    for (const auto &[transport, why] : route.at("why_not").items()) {
        if (route.at("why").is_null() || reasons == Reasons::Told) {
            words += fmt::format("; {}{}: {}", reaches ? "not " : "", transport, why.get<std::string>());
        }
    }
    return words;
}

// Where ODC_REQUIRE is set.
void print_objection(const Json &route, const std::string &indent) {
    if (route.contains("objection") && route.at("memory") == "host") {
        print_line(indent + text_or(route.at("objection"), "ODC_REQUIRE is met"));
    }
}

void print_routes(const Json &machine, Reasons reasons) {
    const Json &here = machine.at("on_this_host");
    fmt::print("\nbetween ranks of this host:\n  {}\n", route_text(here, reasons));
    print_objection(here, "  ");
    fmt::print("\nfrom memory here to the like on another host:\n");
    for (const Json &route : machine.at("to_another_host")) {
        fmt::print("  {:<6}  {}\n", route.at("from").get<std::string>(), route_text(route, reasons));
        print_objection(route, "          ");
    }
}

}  // namespace

void print_machine(const Json &machine, Reasons reasons) {
    const Part root = parts_of(machine);
    fmt::print("{}: {}\n", root.name, root.detail);
    print_tree(root, "");
    print_distances(machine);
    print_routes(machine, reasons);
}

}  // namespace odc_tool

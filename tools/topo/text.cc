// SPDX-License-Identifier: Apache-2.0
#include "topo/text.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace odc_tool {

namespace {

struct Distance {
    const char *text;  // the text of odc_get_topology
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

// Its index in kDistances; the last one for unknown texts.
size_t distance_of(const std::string &text) {
    const auto *row =
        std::find_if(kDistances.begin(), kDistances.end() - 1, [&](const Distance &one) { return one.text == text; });
    return static_cast<size_t>(row - kDistances.begin());
}

// Without trailing blanks.
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

// A table of every device by every device with memory: NICs have rows only.
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
            legend += fmt::format("{}{}: {}", legend.empty() ? "" : ", ", kDistances[i].cell, kDistances[i].text);
        }
    }
    fmt::print("  {}\n", legend);
}

// "; not shm: cuda is faster; ...": the reasons against the other transports, if they are wanted or there is no route.
std::string why_not_text(const Json &route, Reasons reasons) {
    std::string text;
    for (const auto &[transport, why] : route.at("why_not").items()) {
        if (route.at("why").is_null() || reasons == Reasons::Told) {
            text += fmt::format("; {}{}: {}", route.at("transport").is_null() ? "" : "not ", transport,
                                why.get<std::string>());
        }
    }
    return text;
}

std::string route_text(const Json &route, Reasons reasons) {
    const Json &why = route.at("why");
    return transport_text(route) + (why.is_null() ? "" : ": " + why.get<std::string>()) + why_not_text(route, reasons);
}

// The route between two GPUs, and their link.
std::string link_text(const Json &link, Reasons reasons) {
    const bool known = !link.at("access").is_null();
    std::string text = known ? transport_text(link) : "unknown";
    text += ": " + link.at("text").get<std::string>();
    if (reasons == Reasons::Told) {
        text += fmt::format("; PCIe: {}; {}{}", link.at("by_pci").get<std::string>(), link.at("why").get<std::string>(),
                            why_not_text(link, reasons));
    }
    return text;
}

// Pairs of GPUs with equal descriptions share a line; if all are equal, there is one line for all.
void print_gpu_links(const Json &machine, Reasons reasons) {
    const Json &links = machine.at("gpu_links");
    if (links.empty()) {
        return;
    }
    fmt::print("\nbetween GPUs of this host:\n");
    if (!machine.at("why_no_gpu_links").is_null()) {
        fmt::print("  {}\n", machine.at("why_no_gpu_links").get<std::string>());
    }
    struct Line {
        std::string from;
        std::string to;
        std::string text;
    };
    std::vector<Line> lines;
    bool alike = true;
    for (const Json &link : links) {
        const Line line{link.at("between").at(0), link.at("between").at(1), link_text(link, reasons)};
        const auto same = std::find_if(lines.begin(), lines.end(),
                                       [&](const Line &one) { return one.from == line.from && one.text == line.text; });
        if (same == lines.end()) {
            lines.push_back(line);
        } else {
            same->to += ", " + line.to;
        }
        alike = alike && line.text == lines.front().text;
    }
    if (alike && links.size() > 1) {
        lines = {{"each", "each other", lines.front().text}};
    }
    for (const Line &line : lines) {
        fmt::print("  {} to {}  {}\n", line.from, line.to, line.text);
    }
}

// Printed if ODC_REQUIRE is set.
void print_unmet_requirement(const Json &route, const std::string &indent) {
    if (route.contains("unmet_requirement") && route.at("memory") == "host") {
        print_line(indent + text_or(route.at("unmet_requirement"), "ODC_REQUIRE is met"));
    }
}

void print_routes(const Json &machine, Reasons reasons) {
    const Json &here = machine.at("on_this_host");
    fmt::print("\nbetween ranks of this host:\n  {}\n", route_text(here, reasons));
    print_unmet_requirement(here, "  ");
    fmt::print("\nfrom memory here to the like on another host:\n");
    for (const Json &route : machine.at("to_another_host")) {
        fmt::print("  {:<6}  {}\n", route.at("from").get<std::string>(), route_text(route, reasons));
        print_unmet_requirement(route, "          ");
    }
}

}  // namespace

void print_machine(const Json &machine, Reasons reasons) {
    const Part root = parts_of(machine);
    fmt::print("{}: {}\n", root.name, root.detail);
    print_tree(root, "");
    print_distances(machine);
    print_gpu_links(machine, reasons);
    print_routes(machine, reasons);
}

}  // namespace odc_tool

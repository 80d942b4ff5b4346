// SPDX-License-Identifier: Apache-2.0
// Each part is a box that contains its children, laid out in rows; so no two overlap.
#include "topo/picture.h"

#include "cli/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

namespace odc_tool {

namespace {

constexpr double kMargin = 24;  // all in pixels
constexpr double kGap = 10;
constexpr double kDeviceWidth = 236;
constexpr double kTitle = 26;  // height of a box's title
constexpr double kLine = 15;
constexpr double kHead = 84;
constexpr size_t kColumns = 4;
constexpr size_t kLetters = 34;  // that fit into a device's line
constexpr double kLetter = 7.6;  // width of a title's letters, on average

struct Colour {
    Part::Kind kind;
    const char *fill;
    const char *line;
};
constexpr std::array<Colour, 8> kColours = {{{Part::Kind::Machine, "#ffffff", "#ffffff"},
                                             {Part::Kind::Package, "#f1f4f8", "#9aa8b8"},
                                             {Part::Kind::NumaNode, "#ffffff", "#9aa8b8"},
                                             {Part::Kind::Switch, "#faf6ec", "#cbbd94"},
                                             {Part::Kind::Others, "#ffffff", "#9aa8b8"},
                                             {Part::Kind::Gpu, "#d8efdc", "#1f8a5b"},
                                             {Part::Kind::Nic, "#dce8f8", "#2f5f9e"},
                                             {Part::Kind::UnusedNic, "#ececec", "#b5b5b5"}}};

const Colour &colour_of(Part::Kind kind) {
    return *std::find_if(kColours.begin(), kColours.end() - 1, [&](const Colour &row) { return row.kind == kind; });
}

// Splits text into lines of at most kLetters, at spaces if possible.
std::vector<std::string> wrapped(std::string text) {
    std::vector<std::string> lines;
    while (text.size() > kLetters) {
        const size_t space = text.rfind(' ', kLetters);
        const size_t end = space == std::string::npos || space == 0 ? kLetters : space;
        lines.push_back(text.substr(0, end));
        text.erase(0, end + (text[end] == ' ' ? 1 : 0));
    }
    if (!text.empty()) {
        lines.push_back(text);
    }
    return lines;
}

struct Box {
    explicit Box(const Part &shown) : part(shown) {
        for (const Part &one : part.parts) {
            inside.emplace_back(one);
        }
        is_device() ? measure_device() : place_parts();
    }

    bool is_device() const {
        return part.kind == Part::Kind::Gpu || part.kind == Part::Kind::Nic || part.kind == Part::Kind::UnusedNic;
    }

    void measure_device() {
        lines = wrapped(part.detail);
        const std::vector<std::string> note = wrapped(part.note);
        notes = note.size();
        lines.insert(lines.end(), note.begin(), note.end());
        width = kDeviceWidth;
        height = kTitle + kLine * static_cast<double>(lines.size()) + 4;
    }

    // The devices of a switch, and packages, are stacked; everything else is laid out in rows.
    void place_parts() {
        const bool one_column = part.kind == Part::Kind::Switch || part.kind == Part::Kind::Machine;
        const size_t columns = one_column ? 1 : kColumns;
        const double indent = part.kind == Part::Kind::Machine ? 0 : kGap;
        width = kLetter * static_cast<double>(part.name.size() + part.detail.size() + 4);
        double top = part.kind == Part::Kind::Machine ? 0 : kTitle + 4;
        for (size_t first = 0; first < inside.size(); first += columns) {
            double left = indent;
            double tallest = 0;
            for (size_t i = first; i < std::min(first + columns, inside.size()); ++i) {
                inside[i].x = left;
                inside[i].y = top;
                left += inside[i].width + kGap;
                tallest = std::max(tallest, inside[i].height);
            }
            width = std::max(width, left - kGap + indent);
            top += tallest + kGap;
        }
        height = top;
    }

    const Part &part;
    double x = 0;  // relative to the box around it
    double y = 0;
    double width = 0;
    double height = 0;
    std::vector<std::string> lines;  // of a device, below its name; the last `notes` are those of its note
    size_t notes = 0;
    std::vector<Box> inside;
};

class Drawing {
public:
    std::string draw(const Part &root) {
        const Box box(root);
        const double width = std::max(box.width, 860.0) + 2 * kMargin;
        svg_.label(kMargin, 34, "font-size=\"19\" font-weight=\"bold\"", root.name);
        svg_.label(kMargin, 54, fmt::format("font-size=\"12\" fill=\"{}\"", Svg::kFaint), root.detail);
        legend();
        show(box, kMargin, kHead);
        return svg_.document(width, kHead + box.height + kMargin, 11);
    }

private:
    void frame(double x, double y, double width, double height, Part::Kind kind) {
        const Colour &colour = colour_of(kind);
        svg_.add(
            "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"4\" fill=\"{}\" "
            "stroke=\"{}\"/>\n",
            x, y, width, height, colour.fill, colour.line);
    }

    void legend() {
        double x = kMargin;
        for (const auto &[kind, label] : {std::pair(Part::Kind::Gpu, "GPU"), std::pair(Part::Kind::Nic, "NIC"),
                                          std::pair(Part::Kind::UnusedNic, "NIC that reaches no other host"),
                                          std::pair(Part::Kind::Switch, "PCIe switch")}) {
            frame(x, 62, 16, 11, kind);
            svg_.label(x + 22, 71.5, "", label);
            x += 46 + 6.2 * static_cast<double>(std::string(label).size());
        }
    }

    void show(const Box &box, double x, double y) {
        const Part &part = box.part;
        if (part.kind != Part::Kind::Machine) {
            frame(x, y, box.width, box.height, part.kind);
            svg_.add(
                "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"12\"><tspan font-weight=\"bold\">{}</tspan>"
                "<tspan dx=\"8\" fill=\"{}\">{}</tspan></text>\n",
                x + kGap, y + 18, Svg::escaped(part.name), Svg::kFaint,
                box.is_device() ? "" : Svg::escaped(part.detail));
        }
        for (size_t i = 0; i < box.lines.size(); ++i) {
            const bool note = i + box.notes >= box.lines.size();
            svg_.label(x + kGap, y + kTitle + 8 + kLine * static_cast<double>(i),
                       note ? "font-style=\"italic\"" : fmt::format("fill=\"{}\"", Svg::kFaint), box.lines[i]);
        }
        for (const Box &one : box.inside) {
            show(one, x + one.x, y + one.y);
        }
    }

    Svg svg_;
};

}  // namespace

std::string draw_machine(const Json &machine) { return Drawing().draw(parts_of(machine)); }

}  // namespace odc_tool

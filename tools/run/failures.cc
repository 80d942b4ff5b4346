// SPDX-License-Identifier: Apache-2.0
#include "run/failures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace odc_tool {

namespace {

// Whether `next` is the number after the one of `label`; names of hosts follow no other.
bool follows(const std::string &label, const std::string &next) {
    const bool number = label.size() < 9 && label.find_first_not_of("0123456789") == std::string::npos;
    return number && !label.empty() && next == std::to_string(std::stoi(label) + 1);
}

// Numbers by their value.
bool precedes(const std::string &a, const std::string &b) { return std::pair(a.size(), a) < std::pair(b.size(), b); }

}  // namespace

std::string enumerate(const std::string &noun, const std::vector<std::string> &labels) {
    std::string text = noun + (labels.size() == 1 ? "" : "s");
    for (size_t first = 0; first < labels.size();) {
        size_t last = first;
        while (last + 1 < labels.size() && follows(labels[last], labels[last + 1])) {
            ++last;
        }
        text += (first == 0 ? " " : ", ") + labels[first];
        if (last > first) {
            text += (last == first + 1 ? ", " : "-") + labels[last];
        }
        first = last + 1;
    }
    return text;
}

void Failures::add(const Failure &failure) {
    auto way = std::find_if(ways_.begin(), ways_.end(),
                            [&](const Way &one) { return one.noun == failure.noun && one.how == failure.how; });
    if (way == ways_.end()) {
        way = ways_.insert(way, {failure.noun, failure.how, {}});
    }
    way->labels.push_back(failure.label);
}

std::vector<std::string> Failures::take() {
    std::vector<std::string> lines;
    for (Way &way : ways_) {
        const std::string first = way.labels.front();
        std::sort(way.labels.begin(), way.labels.end(), precedes);
        const std::string who = enumerate(way.noun, way.labels);
        if (way.labels.size() == 1) {
            lines.push_back(fmt::format("{} {}", who, way.how));
        } else {
            const std::string how = way.how.rfind("was ", 0) == 0 ? "were " + way.how.substr(4) : way.how;
            lines.push_back(fmt::format("{} {}, {} {} first", who, how, way.noun, first));
        }
    }
    ways_.clear();
    return lines;
}

}  // namespace odc_tool

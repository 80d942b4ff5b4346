// SPDX-License-Identifier: Apache-2.0
// Reads the routes and describes them.
#include "rank/routes.h"

#include "cli/exit.h"
#include "rank/context.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

namespace odc_tool {

std::vector<Route> routes_of(const odc_context *context, odc_memory memory) {
    std::vector<Route> routes;
    for (int rank = 0; rank < odc_size(context); ++rank) {
        if (rank == odc_rank(context)) {
            continue;
        }
        odc_route found{};
        found.struct_size = sizeof(found);
        check(odc_get_route(context, rank, memory, &found));
        if (found.transport == nullptr) {
            throw Exit{1, fmt::format("there is no route to rank {}: {}", rank, found.why_not)};
        }
        const bool staged = std::string_view(found.access) == "staged";
        const std::string text = fmt::format("{}{}: {}", found.transport, staged ? ", staged" : "", found.why);
        auto same =
            std::find_if(routes.begin(), routes.end(), [&](const Route &route) { return route.reason == text; });
        if (same == routes.end()) {
            same = routes.insert(same, {text, found.transport, found.nic != nullptr, {}});
        }
        same->ranks.push_back(rank);
    }
    return routes;
}

std::optional<int> rank_elsewhere(const std::vector<Route> &routes) {
    const auto found =
        std::find_if(routes.begin(), routes.end(), [](const Route &route) { return route.between_hosts; });
    return found != routes.end() ? std::optional(found->ranks.front()) : std::nullopt;
}

std::string routes_text(int rank, const std::vector<Route> &routes) {
    std::string text;
    for (const Route &route : routes) {
        text += fmt::format("rank {} to {} {}: {}\n", rank, route.ranks.size() == 1 ? "rank" : "ranks",
                            fmt::join(route.ranks, ", "), route.reason);
    }
    return text;
}

Json routes_json(const std::vector<Route> &routes) {
    auto json = Json::array();
    for (const Route &route : routes) {
        json.push_back({{"transport", route.transport}, {"reason", route.reason}, {"ranks", route.ranks}});
    }
    return json;
}

}  // namespace odc_tool

// SPDX-License-Identifier: Apache-2.0
// A rank's routes to the others, for the outputs of `odc bench` and `odc replay`.
#pragma once

#include "cli/json.h"

#include <odc/odc.h>

#include <optional>
#include <string>
#include <vector>

namespace odc_tool {

struct Route {
    std::string reason;  // the transport and why it was chosen
    std::string transport;
    bool between_hosts;
    std::vector<int> ranks;  // the ranks with this route, ascending
};

// From this rank to the others' memory of that kind; equal texts are merged. Empty for a single rank. Throws Exit if there is
// no route.
std::vector<Route> routes_of(const odc_context *context, odc_memory memory = ODC_HOST_MEMORY);

// The first rank of another host; none: all are on this one.
std::optional<int> rank_elsewhere(const std::vector<Route> &routes);

// "rank 0 to ranks 1, 2: shm: the same host; ...", one line per route.
std::string routes_text(int rank, const std::vector<Route> &routes);
Json routes_json(const std::vector<Route> &routes);

}  // namespace odc_tool

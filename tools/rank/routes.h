// SPDX-License-Identifier: Apache-2.0
// By which paths a rank reaches the others, for the outputs of `odc bench` and `odc replay`.
#pragma once

#include <odc/odc.h>

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace odc_tool {

struct Route {
    std::string words;  // the transport and why it was chosen
    std::string transport;
    std::vector<int> ranks;  // that are reached by it, ascending
};

// From this rank to the others' memory of that kind; those of the same words are one. Empty for a rank alone. Throws Exit
// where there is no path.
std::vector<Route> routes_of(const odc_context *context, odc_memory memory = ODC_HOST_MEMORY);

// "rank 0 to ranks 1, 2: shm: the same host; ...", a line each.
std::string routes_text(int rank, const std::vector<Route> &routes);
nlohmann::ordered_json routes_json(const std::vector<Route> &routes);

}  // namespace odc_tool

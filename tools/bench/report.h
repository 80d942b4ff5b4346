// SPDX-License-Identifier: Apache-2.0
// The output of `odc bench`: one JSON object, or a table of it.
#pragma once

#include "bench/claim.h"
#include "bench/network.h"
#include "bench/operation.h"
#include "bench/options.h"
#include "bench/race.h"
#include "cli/json.h"
#include "rank/routes.h"
#include "rank/statistics.h"

#include <string>
#include <vector>

namespace odc_tool {

// The measured ranks.
Json result_json(const BenchOptions &options, int ranks, const std::vector<Route> &routes);

// What `limit` is, and how it was chosen.
void add_race(Json &json, const BenchOptions &options, const RaceResult &result, const std::string &limit);
void add_claims(Json &json, const BenchOptions &options, const ClaimResult &result);
void add_sync(Json &json, const BenchOptions &options, const SyncResult &result);
// The rates are rank 0's; its remote slices are as large as any rank's but the last ones'.
void add_network(Json &json, const BenchOptions &options, const std::vector<Route> &routes, const Layout &layout,
                 const NetworkResult &result);
// As name_gbps, name_ratio, name_ratio_low, name_ratio_high and name_verdict; the latter calls it `text`.
void add_other(Json &json, const BenchOptions &options, const std::string &name, const std::string &text,
               const RaceResult &result, size_t other);
// As name, name_low and name_high.
void add_interval(Json &json, const std::string &name, const MedianInterval &interval);

void print_result(const BenchOptions &options, const std::vector<Route> &routes, const Json &json);

}  // namespace odc_tool

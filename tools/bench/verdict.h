// SPDX-License-Identifier: Apache-2.0
// What a measurement of `odc bench` shows: what was reached, with the bar of docs/performance.md if it has one, or why that is
// not to be trusted.
#pragma once

#include "bench/options.h"
#include "bench/rounds.h"
#include "rank/statistics.h"

#include <optional>
#include <string>

namespace odc_tool {

// The least ratio.
std::optional<double> ratio_bar(const BenchOptions &options, int ranks);
// The longest time.
std::optional<double> sync_bar_usec(const BenchOptions &options, int ranks);

struct Verdict {
    std::string text;
    std::optional<std::string> why_not_resolved;
};

// "reached 0.971 (0.952 to 0.983) of the bare copy; bar 0.95: met", or "not resolved: other programs used 55 % of the
// processors". `limit`: "the bare copy".
Verdict ratio_verdict(const BenchOptions &options, const MedianInterval &ratio, const std::string &limit,
                      std::optional<double> bar, const Disturbance &disturbance);
// The fewest of all ranks together.
std::optional<double> claim_bar_per_second(int ranks);
// "made 8.10 million claims/s (7.90 to 8.20); bar 2 million/s: met"; likewise.
Verdict claim_verdict(const BenchOptions &options, const MedianInterval &per_second, std::optional<double> bar,
                      const Disturbance &disturbance);
// "took 0.68 us (0.67 to 0.69); bar 20 us: met"; likewise.
Verdict sync_verdict(const BenchOptions &options, const MedianInterval &usec, std::optional<double> bar,
                     const Disturbance &disturbance);

}  // namespace odc_tool

// SPDX-License-Identifier: Apache-2.0
// What other programs take of this machine's processors while something is measured.
#pragma once

#include "cli/json.h"

#include <optional>
#include <string>

namespace odc_tool {

// Above this share measured ratios say more of the other programs.
constexpr double kBusyMachine = 0.2;

// Processor time of all programs since the construction, from /proc/stat.
class MachineLoad {
public:
    MachineLoad();

    // The share of all processors' time since the construction that other programs used; `own_seconds`: processor time of the
    // measured ones. Nothing where /proc/stat cannot be read.
    std::optional<double> share_of_others(double own_seconds) const;

private:
    struct Times {
        double busy;  // seconds
        double all;
    };
    static std::optional<Times> now();

    std::optional<Times> begin_;
};

// Processor time of this process.
double own_cpu_seconds();

// Why nothing is resolved above kBusyMachine: "other programs used 55 % of the processors".
std::optional<std::string> why_not_resolved(std::optional<double> share);

// "not resolved: other programs used 55 % of the processors".
std::string not_resolved(const std::string &why);

// `resolved`, and the reason in `why_not_resolved` (null if resolved), which stand beside what was measured.
Json resolution_json(const std::optional<std::string> &why);

}  // namespace odc_tool

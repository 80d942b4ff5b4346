// SPDX-License-Identifier: Apache-2.0
// Reads the processors' times from /proc/stat, as proc_stat(5) describes them.
#include "cli/machine_load.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <fstream>

namespace odc_tool {

MachineLoad::MachineLoad() : begin_(now()) {}

std::optional<MachineLoad::Times> MachineLoad::now() {
    std::ifstream file("/proc/stat");
    std::string cpu;
    std::array<double, 8> ticks{};  // user, nice, system, idle, iowait, irq, softirq, steal
    file >> cpu;
    for (double &one : ticks) {
        file >> one;
    }
    if (!file) {
        return std::nullopt;
    }
    double all = 0;
    for (const double one : ticks) {
        all += one;
    }
    const auto per_second = double(sysconf(_SC_CLK_TCK));
    return Times{(all - ticks[3] - ticks[4]) / per_second, all / per_second};
}

std::optional<double> MachineLoad::share_of_others(double own_seconds) const {
    const std::optional<Times> end = now();
    if (!begin_ || !end || end->all <= begin_->all) {
        return std::nullopt;
    }
    return std::clamp((end->busy - begin_->busy - own_seconds) / (end->all - begin_->all), 0.0, 1.0);
}

double own_cpu_seconds() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval &time) { return double(time.tv_sec) + double(time.tv_usec) * 1e-6; };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::optional<std::string> why_not_resolved(std::optional<double> share) {
    if (!share || *share <= kBusyMachine) {
        return std::nullopt;
    }
    return fmt::format("other programs used {:.0f} % of the processors", *share * 100);
}

std::string not_resolved(const std::string &why) { return "not resolved: " + why; }

Json resolution_json(const std::optional<std::string> &why) {
    return {{"resolved", !why}, {"why_not_resolved", why ? Json(*why) : Json()}};
}

}  // namespace odc_tool

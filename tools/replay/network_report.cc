// SPDX-License-Identifier: Apache-2.0
// Sums over runs, and the rows about the network.
#include "replay/network_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace odc_tool {
namespace {

// At the other end, a rank's bytes count in equal parts for each other host.
std::vector<HostTraffic> counted_traffic(const EmulatedHosts &hosts, const RunRecords &records, size_t run) {
    std::vector<HostTraffic> traffic(hosts.count());
    const auto others = double(hosts.count() - 1);
    for (size_t rank = 0; rank < records.size(); ++rank) {
        const auto fetched = double(records[rank][run].crossed.fetched);
        const auto sent = double(records[rank][run].crossed.sent);
        for (size_t host = 0; host < hosts.count(); ++host) {
            const bool here = host == hosts.host_of(rank);
            traffic[host].in += here ? fetched : sent / others;
            traffic[host].out += here ? sent : fetched / others;
        }
    }
    return traffic;
}

double into_hosts(const std::vector<HostTraffic> &traffic) {
    double bytes = 0;
    for (const HostTraffic &host : traffic) {
        bytes += host.in;
    }
    return bytes;
}

}  // namespace

NetworkReport network_report(const Workload &workload, const RunRecords &records, size_t arm) {
    const EmulatedHosts &hosts = *workload.hosts;
    const std::vector<Run> runs = run_order(workload);
    NetworkReport report{};
    std::vector<double> seconds;
    double total = 0;
    double ideal = 0;
    double longer = 0;
    for (size_t run = 0; run < runs.size(); ++run) {
        if (runs[run].arm != arm) {
            continue;
        }
        const std::vector<HostTraffic> traffic = counted_traffic(hosts, records, run);
        const double compute = workload.expected(workload.arms[arm], runs[run].minibatch);
        const double network = hosts.seconds(traffic);
        seconds.push_back(double(longest(records, run)) / workload.ns_per_cost);
        total += seconds.back();
        ideal += compute;
        longer += std::max(compute, network);
        report.bytes += into_hosts(traffic);
        report.formula += into_hosts(workload.traffic(workload.arms[arm], runs[run].minibatch));
        report.network_seconds += network;
    }
    const auto count = double(seconds.size());
    report.seconds = median_interval(seconds);
    report.hidden = std::clamp(1 - (total - ideal) / report.network_seconds, 0.0, 1.0);
    report.share_of_longer = longer / total;
    report.bytes /= count * double(hosts.count());
    report.formula /= count * double(hosts.count());
    report.network_seconds /= count;
    return report;
}

std::string network_text(const ReplaySettings &settings, size_t ranks) {
    return fmt::format(
        "emulated network: {} hosts of {} ranks, a link of {:.4g} Gbit/s for each host and direction, scaled as bytes and "
        "time are; bytes move over loopback, and who moved them waits for the link",
        settings.hosts, ranks / static_cast<size_t>(settings.hosts), settings.bandwidth * 1e-9);
}

std::string network_header() {
    return fmt::format("{:>15}{:>18}{:>12}{:>11}{:>9}{:>15}", "s a minibatch", "GB into a host", "by formula",
                       "network s", "hidden", "of the longer");
}

std::string network_row(const NetworkReport &report, double scale) {
    return fmt::format("{:>15.2f}{:>18.2f}{:>12.2f}{:>11.2f}{:>7.1f} %{:>13.1f} %", report.seconds.median,
                       report.bytes * scale * 1e-9, report.formula * scale * 1e-9, report.network_seconds,
                       report.hidden * 100, report.share_of_longer * 100);
}

std::string network_legend() {
    return "seconds and GB are those of the emulated devices; GB into a host in a minibatch: as libodc counts them (ring "
           "collectives by\ntheir formula); network: what the busiest link needs; hidden: the share of that which adds "
           "nothing to the ideal;\nthe longer: of the ideal and the network\n";
}

Json network_json(const NetworkReport &report) {
    const MedianInterval &seconds = report.seconds;
    return {{"minibatch_seconds", {{"median", seconds.median}, {"low", seconds.low}, {"high", seconds.high}}},
            {"bytes_into_host", report.bytes},
            {"formula_bytes_into_host", report.formula},
            {"network_seconds", report.network_seconds},
            {"hidden", report.hidden},
            {"share_of_longer", report.share_of_longer}};
}

}  // namespace odc_tool

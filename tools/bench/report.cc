// SPDX-License-Identifier: Apache-2.0
#include "bench/report.h"

#include "bench/verdict.h"
#include "cli/machine_load.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <cstring>
#include <optional>

namespace odc_tool {

namespace {

double gbps(const BenchOptions &options, double seconds) { return static_cast<double>(options.bytes) * 1e-9 / seconds; }

std::string amount_text(uint64_t bytes) {
    if (bytes % (1 << 20) == 0) {
        return fmt::format("{} MiB", bytes >> 20);
    }
    return bytes % (1 << 10) == 0 ? fmt::format("{} KiB", bytes >> 10) : fmt::format("{} bytes", bytes);
}

constexpr size_t kColumns = 80;

// Prints a line; if it is longer than kColumns, each part up to a semicolon on a line of its own.
void print_folded(std::string line, size_t indent) {
    if (line.size() > kColumns) {
        const std::string begin = ";\n" + std::string(indent, ' ');
        for (size_t end = 0; (end = line.find("; ", end)) != std::string::npos; end += begin.size()) {
            line.replace(end, 2, begin);
        }
    }
    fmt::print("{}\n", line);
}

void print_verdict(const Json &json) {
    const std::string title = "verdict: ";
    print_folded(title + json["verdict"].get<std::string>(), title.size());
    fmt::print("\n");
}

void print_rate(const std::string &title, double rate, const std::string &text = "") {
    fmt::print("{:<22}{:>8.2f} GB/s per rank{}\n", title, rate, text);
}

bool has_resolved_ratios(const Json &json) { return json["resolved"].get<bool>(); }

void print_ratio(const Json &json, const std::string &title, const std::string &key) {
    if (!has_resolved_ratios(json)) {
        fmt::print("{:<22}{:>9}\n", title, "-");
        return;
    }
    fmt::print("{:<22}{:>9.3f} ({:.3f} to {:.3f})\n", title, json[key].get<double>(), json[key + "_low"].get<double>(),
               json[key + "_high"].get<double>());
}

void print_usec(const Json &json, const std::string &title, const std::string &key, const std::string &text = "") {
    fmt::print("{:<22}{:>8.2f} us ({:.2f} to {:.2f}){}\n", title, json[key].get<double>(),
               json[key + "_low"].get<double>(), json[key + "_high"].get<double>(), text);
}

void print_disturbance(const Json &json) {
    const auto repeated = json["pairs_repeated"].get<size_t>();
    const Json &others = json["others_cpu_share"];
    if (!others.is_null()) {
        fmt::print("{:<22}{:>5.0f} % of the processors{}\n", "other programs", 100 * others.get<double>(),
                   repeated > 0 ? fmt::format(", pairs repeated: {}", repeated) : "");
    }
}

// The other contestants.
void print_other(const Json &json, const std::string &title, const std::string &key, const std::string &text) {
    if (!json.contains(key + "_gbps")) {
        return;
    }
    print_rate(title, json[key + "_gbps"].get<double>(), text);
    if (has_resolved_ratios(json)) {
        fmt::print("  libodc reached {:.3f} ({:.3f} to {:.3f}) of {}\n", json[key + "_ratio"].get<double>(),
                   json[key + "_ratio_low"].get<double>(), json[key + "_ratio_high"].get<double>(),
                   json[key + "_name"].get<std::string>());
    }
}

// "the bare copy".
std::string limit_name(const BenchOptions &options) {
    if (options.on_gpus()) {
        return "the limit";
    }
    return options.operation == "gather" ? "the bare copy" : "the bare addition";
}

void print_race(const BenchOptions &options, const Json &json) {
    const std::string limit = limit_name(options).substr(std::strlen("the "));
    print_verdict(json);
    print_rate("libodc", json["gbps"].get<double>());
    print_rate(limit, json["limit_gbps"].get<double>(), fmt::format(" ({})", json["limit"].get<std::string>()));
    print_ratio(json, "  against itself", "limit_self_ratio");
    print_disturbance(json);
    print_other(json, "default sums", "default", "");
    print_other(json, "plain a += b", "plain", " (on own memory)");
    print_other(json, "the owner adds", "owner", fmt::format(" ({})", json.value("owner", "")));
    if (json.contains("owner_why_not")) {
        fmt::print("the owner adds: not measured, {}\n", json["owner_why_not"].get<std::string>());
    }
    print_other(json, "NCCL", "nccl", fmt::format(" ({})", json.value("nccl_version", "")));
    if (json.contains("host_usec")) {
        print_usec(json, "host time of a call", "host_usec",
                   fmt::format(", median of {} calls", json["host_calls"].get<uint64_t>()));
    }
    print_folded(json["build"].get<std::string>(), 2);
}

void print_network(const Json &json) {
    fmt::print("{:<22}{:>8.2f} GB/s per rank ({:.2f} to {:.2f}), {:.0f} % of the bytes between hosts\n", "libodc",
               json["gbps"].get<double>(), json["gbps_low"].get<double>(), json["gbps_high"].get<double>(),
               100 * json["network_share"].get<double>());
    fmt::print("no bare loop: between hosts a copy of memory is not the limit\n");
}

void print_sync(const Json &json) {
    if (!json.contains("limit_usec")) {
        print_usec(json, "libodc", "usec");
        fmt::print("no bare loop: between hosts a copy of memory is not the limit\n");
        return;
    }
    print_verdict(json);
    print_usec(json, "libodc", "usec");
    print_usec(json, "bare barrier", "limit_usec");
    print_disturbance(json);
}

double millions(const Json &json, const std::string &key) { return 1e-6 * json[key].get<double>(); }

void print_claims(const Json &json) {
    print_verdict(json);
    fmt::print("{:<22}{:>8.2f} M claims/s ({:.2f} to {:.2f})\n", "libodc", millions(json, "claims_per_second"),
               millions(json, "claims_per_second_low"), millions(json, "claims_per_second_high"));
    fmt::print("{:<22}{:>8.2f} M additions/s ({:.2f} to {:.2f})\n", "one atomic counter",
               millions(json, "limit_per_second"), millions(json, "limit_per_second_low"),
               millions(json, "limit_per_second_high"));
    print_disturbance(json);
}

void print_head(const BenchOptions &options, const Json &json) {
    const bool timings = json.contains("network_share") || (json.contains("usec") && !json.contains("limit_usec"));
    const std::string tensor =
        options.operation == "claim"
            ? ""
            : fmt::format("{} {}{}, ", amount_text(options.bytes), options.type, options.exact() ? ", exact sums" : "");
    fmt::print("odc bench {}: {}{} ranks{}, {} {}", options.operation, tensor, json["ranks"].get<int>(),
               options.one_active() ? " of which rank 0 is active" : "", options.pairs, timings ? "timings" : "pairs");
    if (json.contains("repeats")) {
        fmt::print(" of {} operations", json["repeats"].get<uint64_t>());
    }
    fmt::print("\n");
    for (const Json &gpu : json.value("gpus", Json::array())) {
        const auto ranks = gpu["ranks"].get<std::vector<int>>();
        fmt::print("{} {} on {} ({})\n", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "),
                   gpu["device"].get<std::string>(), gpu["name"].get<std::string>());
    }
}

void add_verdict(Json &json, const Disturbance &disturbance, std::optional<double> bar, const Verdict &verdict) {
    json["others_cpu_share"] = disturbance.others ? Json(*disturbance.others) : Json();
    json["pairs_repeated"] = disturbance.repeated;
    if (bar) {
        json["bar"] = *bar;
    }
    json["verdict"] = verdict.text;
    json.update(resolution_json(verdict.why_not_resolved));
}

}  // namespace

Json result_json(const BenchOptions &options, int ranks, const std::vector<Route> &routes) {
    Json json = {{"op", options.operation}, {"ranks", ranks},         {"bytes", options.bytes},
                 {"type", options.type},    {"pairs", options.pairs}, {"routes", routes_json(routes)}};
    json["memory"] = options.memory;
    if (!options.sum.empty()) {
        json["sum"] = options.sum;
    }
    return json;
}

void add_interval(Json &json, const std::string &name, const MedianInterval &interval) {
    json[name] = interval.median;
    json[name + "_low"] = interval.low;
    json[name + "_high"] = interval.high;
}

void add_race(Json &json, const BenchOptions &options, const RaceResult &result, const std::string &limit) {
    const std::optional<double> bar = ratio_bar(options, json["ranks"].get<int>());
    json["gbps"] = gbps(options, result.seconds.median);
    json["limit_gbps"] = gbps(options, result.limit_seconds.median);
    add_interval(json, "ratio", result.ratio);
    add_interval(json, "limit_self_ratio", result.self_ratio);
    json["repeats"] = result.repeats;
    json["sample_ms"] = 1e3 * result.seconds.median * static_cast<double>(result.repeats);
    json["limit"] = limit;
    json["build"] = odc_build();  // names the loops that it has chosen, and the others' speeds
    add_verdict(json, result.disturbance, bar,
                ratio_verdict(options, result.ratio, limit_name(options), bar, result.disturbance));
}

void add_claims(Json &json, const BenchOptions &options, const ClaimResult &result) {
    const std::optional<double> bar = claim_bar_per_second(json["ranks"].get<int>());
    add_interval(json, "claims_per_second", result.per_second);
    add_interval(json, "limit_per_second", result.limit);
    add_interval(json, "ratio", result.ratio);
    json["repeats"] = result.repeats;
    add_verdict(json, result.disturbance, bar, claim_verdict(options, result.per_second, bar, result.disturbance));
}

void add_sync(Json &json, const BenchOptions &options, const SyncResult &result) {
    const std::optional<double> bar = sync_bar_usec(options, json["ranks"].get<int>());
    add_interval(json, "usec", result.usec);
    add_interval(json, "limit_usec", result.limit_usec);
    add_verdict(json, result.disturbance, bar, sync_verdict(options, result.usec, bar, result.disturbance));
}

void add_other(Json &json, const BenchOptions &options, const std::string &name, const std::string &text,
               const RaceResult &result, size_t other) {
    const RaceResult::Other &one = result.others[other];
    json[name + "_gbps"] = gbps(options, one.seconds.median);
    add_interval(json, name + "_ratio", one.ratio);
    json[name + "_name"] = text;
    json[name + "_verdict"] = ratio_verdict(options, one.ratio, text, std::nullopt, result.disturbance).text;
}

void add_network(Json &json, const BenchOptions &options, const std::vector<Route> &routes, const Layout &layout,
                 const NetworkResult &result) {
    uint64_t remote = 0;
    for (const Route &route : routes) {
        for (const int rank : route.ranks) {
            remote += route.between_hosts ? layout.bytes_of(rank) : 0;
        }
    }
    json.update({{"gbps", gbps(options, result.seconds.median)},
                 {"gbps_low", gbps(options, result.seconds.high)},
                 {"gbps_high", gbps(options, result.seconds.low)},
                 {"network_share", static_cast<double>(remote) / static_cast<double>(layout.bytes())},
                 {"repeats", result.repeats}});
}

void print_result(const BenchOptions &options, const std::vector<Route> &routes, const Json &json) {
    if (options.json) {
        fmt::print("{}\n", line_text(json));
        return;
    }
    print_head(options, json);
    fmt::print("{}", routes_text(0, routes));
    if (json.contains("hosts")) {
        fmt::print("{}\n", json["hosts"].get<std::string>());
    }
    fmt::print("\n");
    if (json.contains("claims_per_second")) {
        print_claims(json);
    } else if (json.contains("usec")) {
        print_sync(json);
    } else if (json.contains("network_share")) {
        print_network(json);
    } else {
        print_race(options, json);
    }
}

}  // namespace odc_tool

// SPDX-License-Identifier: Apache-2.0
// Each rank writes its row of routes, as JSON, into its slice of a shard of bytes, which rank 0 gathers.
#include "topo/job.h"

#include "cli/exit.h"
#include "rank/context.h"
#include "topo/parts.h"

#include <fmt/format.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace odc_tool {

namespace {

constexpr int kMostNamed = 16;  // ranks in a matrix with full names in its cells

Json route_json(odc_context *context, int rank, odc_memory memory) {
    odc_route route{};
    route.struct_size = sizeof(route);
    check(odc_get_route(context, rank, memory, &route));
    Json json = {{"to", rank},
                 {"memory", memory == ODC_GPU_MEMORY ? "gpu" : "host"},
                 {"transport", route.transport != nullptr ? Json(route.transport) : Json()},
                 {"access", route.access},
                 {"why", route.why},
                 {"why_not", route.why_not}};
    if (route.provider != nullptr) {
        json["provider"] = route.provider;
        json["nic"] = route.nic;
        json["peer_nic"] = route.peer_nic;
    }
    return json;
}

Json own_row(odc_context *context) {
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    if (const char *named = std::getenv("ODC_HOST_ID"); named != nullptr && *named != '\0') {
        host[std::string_view(named).copy(host, sizeof host - 1)] = '\0';
    }
    Json row = {{"rank", odc_rank(context)}, {"host", host}, {"routes", Json::array()}, {"gpu_routes", Json::array()}};
    for (int rank = 0; rank < odc_size(context); ++rank) {
        row["routes"].push_back(route_json(context, rank, ODC_HOST_MEMORY));
        row["gpu_routes"].push_back(route_json(context, rank, ODC_GPU_MEMORY));
    }
    return row;
}

// All ranks' rows on rank 0, nothing on the others.
std::vector<Json> gather_rows(odc_context *context) {
    const std::string row = line_text(own_row(context), NotUtf8::Replaced);
    auto longest = static_cast<double>(row.size() + 1);
    check(odc_all_reduce(context, &longest, 1, ODC_MAX));
    const auto slice_bytes = static_cast<uint64_t>(longest);
    const auto size = static_cast<size_t>(odc_size(context));
    odc_shard_desc desc{};
    desc.struct_size = sizeof desc;
    desc.name = "topo";
    desc.numel = slice_bytes * size;
    desc.parameter_type = ODC_BYTES;
    odc_shard *shard = nullptr;
    check(odc_register_shard(context, &desc, &shard));
    odc_slice slice{};
    slice.struct_size = sizeof slice;
    check(odc_get_slice(shard, &slice));
    std::memcpy(slice.parameters, row.c_str(), row.size() + 1);
    check(odc_publish(shard, nullptr));
    std::vector<Json> rows;
    if (odc_rank(context) == 0) {
        std::vector<char> all(desc.numel);
        check(odc_gather(shard, all.data(), all.size(), nullptr));
        for (size_t rank = 0; rank < size; ++rank) {
            rows.push_back(parse_json(&all[rank * slice_bytes]));
        }
    }
    check(odc_minibatch_sync(context));
    return rows;
}

// Hosts with the same name are told apart: "node", "node #2". Only ranks of one host share memory.
void tell_apart(std::vector<Json> &rows) {
    std::vector<std::string> names;  // the original names, at each host's lowest rank; "" for the others
    for (size_t rank = 0; rank < rows.size(); ++rank) {
        Json &row = rows[rank];
        const auto other = std::find_if(row.at("routes").begin(), row.at("routes").end(),
                                        [](const Json &route) { return !route.contains("nic"); });
        const size_t first = other->at("to");  // itself, if there is no other
        if (first < rank) {
            row["host"] = rows[first].at("host");
            names.emplace_back();
            continue;
        }
        names.push_back(row.at("host"));
        if (const auto count = std::count(names.begin(), names.end(), names.back()); count > 1) {
            row["host"] = fmt::format("{} #{}", names.back(), count);
        }
    }
}

std::string transport_of(const Json &route) { return text_or(route.at("transport"), "none"); }

// Ranks with GPU memory have a route to their own.
std::vector<int> ranks_without_gpu(const std::vector<Json> &rows) {
    std::vector<int> ranks;
    for (size_t rank = 0; rank < rows.size(); ++rank) {
        if (rows[rank].at("gpu_routes").at(rank).at("transport").is_null()) {
            ranks.push_back(static_cast<int>(rank));
        }
    }
    return ranks;
}

// `routes`: the key of the rows' routes.
void print_matrix(const std::vector<Json> &rows, const char *routes) {
    const bool named = rows.size() <= kMostNamed;
    size_t width = 1;
    size_t host_width = 4;
    for (const Json &row : rows) {
        host_width = std::max(host_width, row.at("host").get<std::string>().size());
        for (const Json &route : row.at(routes)) {
            width = std::max(width, named ? transport_of(route).size() : 1);
        }
    }
    fmt::print("{:>5}  {:<{}}", "rank", "host", host_width);
    for (size_t rank = 0; named && rank < rows.size(); ++rank) {
        fmt::print(" {:>{}}", rank, width);
    }
    fmt::print("\n");
    for (const Json &row : rows) {
        fmt::print("{:>5}  {:<{}}{}", row.at("rank").get<int>(), row.at("host").get<std::string>(), host_width,
                   named ? "" : " ");
        for (const Json &route : row.at(routes)) {
            const std::string cell = route.at("to") == row.at("rank") ? "-" : transport_of(route);
            fmt::print("{}", named ? fmt::format(" {:>{}}", cell, width) : cell.substr(0, 1));
        }
        fmt::print("\n");
    }
    if (!named) {
        fmt::print("each cell is the first letter of the transport to ranks 0, 1, ...\n");
    }
}

// Keeps only the route from the first rank to the second.
void keep_pair(std::vector<Json> &rows, const std::vector<int> &pair) {
    Json row = rows[static_cast<size_t>(pair[0])];
    for (const char *routes : {"routes", "gpu_routes"}) {
        row[routes] = Json::array({row.at(routes).at(static_cast<size_t>(pair[1]))});
    }
    rows.assign(1, row);
}

void print_reason(const Json &row, const Json &route, const char *memory) {
    const std::string why_not = route.at("why_not");
    fmt::print("{} to {}  {}{}: {}{}{}\n", row.at("rank").get<int>(), route.at("to").get<int>(), memory,
               transport_text(route), route.at("why").get<std::string>(), why_not.empty() ? "" : "; not ", why_not);
}

// For each pair of ranks. Ranks in `without_gpu` have no route to their own GPU memory; only the reason is printed, unless a
// pair is given.
void print_reasons(const std::vector<Json> &rows, const std::vector<int> &pair, const std::vector<int> &without_gpu) {
    const auto has_gpu = [&](const Json &rank) {
        return std::find(without_gpu.begin(), without_gpu.end(), rank) == without_gpu.end();
    };
    for (const Json &row : rows) {
        for (const Json &route : row.at("routes")) {
            if (route.at("to") != row.at("rank") || !pair.empty()) {
                print_reason(row, route, "");
            }
        }
    }
    for (const Json &row : rows) {
        for (const Json &route : row.at("gpu_routes")) {
            const Json &from = row.at("rank");
            const Json &to = route.at("to");
            if (!pair.empty() || (from == to ? !has_gpu(from) : has_gpu(from) && has_gpu(to))) {
                print_reason(row, route, "GPU memory, ");
            }
        }
    }
}

void check_pair(const std::vector<int> &pair, int size) {
    for (const int rank : pair) {
        if (rank < 0 || rank >= size) {
            throw Exit{2, fmt::format("--why names rank {}, but the job has ranks 0 to {}", rank, size - 1)};
        }
    }
}

}  // namespace

void show_job(const JobTopo &wanted) {
    const Context context = join("topo");
    check_pair(wanted.pair, odc_size(context.get()));
    std::vector<Json> rows = gather_rows(context.get());
    tell_apart(rows);
    if (rows.empty()) {
        return;
    }
    const std::vector<int> without_gpu = ranks_without_gpu(rows);
    if (!wanted.pair.empty()) {
        keep_pair(rows, wanted.pair);
    }
    if (wanted.form == Form::JsonText) {
        fmt::print("{}\n", lines_text({{"ranks", rows}}));
        return;
    }
    if (wanted.pair.empty()) {
        print_matrix(rows, "routes");
        if (without_gpu.size() < rows.size()) {
            fmt::print("\nGPU memory:\n");
            print_matrix(rows, "gpu_routes");
        }
    }
    if (wanted.reasons == Reasons::Told) {
        fmt::print("{}", wanted.pair.empty() ? "\n" : "");
        print_reasons(rows, wanted.pair, without_gpu);
    }
}

}  // namespace odc_tool

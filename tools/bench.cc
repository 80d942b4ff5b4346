// SPDX-License-Identifier: Apache-2.0
// odc bench: how close libodc's operations come to what this machine can do, measured in one run on the same buffers.
#include "bench_network.h"
#include "bench_race.h"
#include "context.h"
#include "launch.h"
#include "numbers.h"
#include "routes.h"
#include "verbs.h"

#include <fmt/format.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace odc_tool {

namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kMostBytes = uint64_t{1} << 50;  // so that what all ranks need is counted in 64 bits

struct BenchOptions {
    std::string operation;
    int ranks = 0;       // 0: the job's, or 2
    uint64_t bytes = 0;  // 0: 64 MiB, or 64 KiB for sync
    std::string type = "f32";
    std::string transport;  // empty: whatever the ranks are reached by
    int pairs = 0;          // 0: 31, or 1001 for sync
    bool json = false;
};

const char *const kMethod =
    "Every rank does the operation at the same time on a tensor of --bytes (of the type given: for\n"
    "scatter-add those of the gradient) and, in random order, so does a bare loop in the same processes:\n"
    "the same buffer of the caller, slices of the same size. GB/s are the tensor's bytes by the time from\n"
    "the first rank's start to the last one's end. A timing takes 10 ms or more: operations follow each\n"
    "other without barriers, after one that is not timed. The ratio is the median of the pairs' ratios\n"
    "with its 95 % interval; \"the loop against itself\" shows what ratio the machine's noise alone\n"
    "gives.\n"
    "gather:       the bare loop is memcpy or a non-temporal copy, whichever is faster here.\n"
    "scatter-add:  at least 8 additions per minibatch after one that is not timed (the first one stores\n"
    "              instead of adding); the bare loop adds the same types under one spin lock per stripe,\n"
    "              of the size that is fastest here.\n"
    "sync:         from the moment when all ranks are ready to the last one's return; each rank added to\n"
    "              a tensor of --bytes before. The bare loop is one atomic counter that all ranks spin\n"
    "              on.\n"
    "The slices of the bare loop lie in large pages where the system gives them. All bytes and sums are\n"
    "checked. Started inside a job (odc run, torchrun, mpirun, Slurm) odc bench joins that job as one\n"
    "rank.\n"
    "Between hosts, in a job of several or by --transport fabric, there is no bare loop: the limit is not\n"
    "a copy of memory but the network. Ranks start together at a sync, each by its own clock, and the\n"
    "slowest counts; a sync's time holds the ranks' distance at its start.";

const std::map<std::string, odc_type> &types() {
    static const std::map<std::string, odc_type> all = {
        {"f32", ODC_F32}, {"bf16", ODC_BF16}, {"f16", ODC_F16}, {"f64", ODC_F64}};
    return all;
}

// The operating system would grant more than there is and kill somebody later.
void check_memory(uint64_t bytes) {
    const uint64_t available =
        static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    if (bytes > available) {
        throw Exit{1, fmt::format("the benchmark needs {} bytes of memory, but this machine has {}; give fewer --bytes",
                                  bytes, available)};
    }
}

void check_bytes(const BenchOptions &options) {
    const uint64_t element = element_bytes(types().at(options.type));
    if (options.bytes % element != 0) {
        throw Exit{2, fmt::format("--bytes {} is not a multiple of {}, the bytes of an element of type {}",
                                  options.bytes, element, options.type)};
    }
}

// What the ranks measure with.
struct Joined {
    odc_context *context;  // has the tensor
    odc_context *meeting;  // between hosts: has no shards; else NULL
    std::vector<Route> routes;
};

Json result_json(const BenchOptions &options, const Joined &joined) {
    return {{"op", options.operation}, {"ranks", odc_size(joined.context)},
            {"bytes", options.bytes},  {"type", options.type},
            {"pairs", options.pairs},  {"routes", routes_json(joined.routes)}};
}

double gbps(const BenchOptions &options, double seconds) { return static_cast<double>(options.bytes) * 1e-9 / seconds; }

Json race_json(const BenchOptions &options, const Joined &joined, const RaceResult &result, const std::string &limit) {
    Json json = result_json(options, joined);
    json.update({{"gbps", gbps(options, result.seconds.median)},
                 {"limit_gbps", gbps(options, result.limit_seconds.median)},
                 {"ratio", result.ratio.median},
                 {"ratio_low", result.ratio.low},
                 {"ratio_high", result.ratio.high},
                 {"limit_self_ratio", result.self_ratio.median},
                 {"limit_self_ratio_low", result.self_ratio.low},
                 {"limit_self_ratio_high", result.self_ratio.high},
                 {"repeats", result.repeats},
                 {"limit", limit}});
    return json;
}

// The rates are those of rank 0, whose remote slices are as large as any rank's but the last ones'.
Json network_json(const BenchOptions &options, const Joined &joined, const Tensor &tensor,
                  const NetworkResult &result) {
    uint64_t remote = 0;
    for (const Route &route : joined.routes) {
        for (const int rank : route.ranks) {
            remote += route.transport == "shm" ? 0 : tensor.bytes_of(rank);
        }
    }
    Json json = result_json(options, joined);
    json.update({{"gbps", gbps(options, result.seconds.median)},
                 {"gbps_low", gbps(options, result.seconds.high)},
                 {"gbps_high", gbps(options, result.seconds.low)},
                 {"network_share", static_cast<double>(remote) / static_cast<double>(tensor.bytes())},
                 {"repeats", result.repeats}});
    return json;
}

Json sync_json(const BenchOptions &options, const Joined &joined, const std::vector<double> &usec) {
    const MedianInterval sync = median_interval(usec);
    Json json = result_json(options, joined);
    json.update({{"usec", sync.median}, {"usec_low", sync.low}, {"usec_high", sync.high}});
    return json;
}

Json bench_gather(const Joined &joined, const BenchOptions &options) {
    const Tensor tensor(joined.context, options.bytes, types().at(options.type));
    if (joined.meeting != nullptr) {
        Gather gather(joined.context, tensor);
        return network_json(options, joined, tensor,
                            time_network(joined.meeting, gather.contestant(), options.pairs, 1'000'000));
    }
    Group group(joined.context, BareGather::shared_bytes(tensor));
    Gather gather(joined.context, tensor);
    BareGather bare(group, tensor, gather);
    const std::string limit = bare.choose();
    const uint64_t repeats = choose_repeats(group, bare.contestant(), 2, 1'000'000);
    const RaceResult result = race(group, gather.contestant(), bare.contestant(), options.pairs, repeats);
    return race_json(options, joined, result, limit);
}

Json bench_add(const Joined &joined, const BenchOptions &options) {
    const int ranks = odc_size(joined.context);
    const Tensor tensor(joined.context, options.bytes, types().at(options.type));
    if (joined.meeting != nullptr) {
        Addition addition(joined.context, tensor);
        return network_json(options, joined, tensor,
                            time_network(joined.meeting, addition.contestant(), options.pairs, most_additions(ranks)));
    }
    Group group(joined.context, BareAddition::shared_bytes(tensor, ranks));
    Addition addition(joined.context, tensor);
    BareAddition bare(group, tensor);
    const std::string limit = bare.choose();
    const uint64_t repeats = choose_repeats(group, bare.contestant(), 8, most_additions(ranks));
    const RaceResult result = race(group, addition.contestant(), bare.contestant(), options.pairs, repeats);
    return race_json(options, joined, result, "locked " + limit);
}

Json bench_sync(const Joined &joined, const BenchOptions &options) {
    const Tensor tensor(joined.context, options.bytes, types().at(options.type));
    std::optional<Group> group;
    if (joined.meeting == nullptr) {
        group.emplace(joined.context, 0);
    }
    Addition addition(joined.context, tensor);
    const Contestant odc = addition.contestant();
    const auto sync = [&] { check(odc_minibatch_sync(joined.context)); };
    std::vector<double> usec;
    std::vector<double> limit_usec;
    for (int i = 0; i < options.pairs; ++i) {
        odc.prepare();
        odc.operate();
        usec.push_back(1e6 * (group ? group->time_from_one_moment(sync) : time_together(joined.meeting, sync)));
        addition.check_slice();
        if (group) {
            limit_usec.push_back(1e6 * group->time_from_one_moment([&] { group->spin_barrier(); }));
        }
    }
    Json json = sync_json(options, joined, usec);
    if (group) {
        json["limit_usec"] = median_interval(limit_usec).median;
    }
    return json;
}

std::string in_words(uint64_t bytes) {
    if (bytes % (1 << 20) == 0) {
        return fmt::format("{} MiB", bytes >> 20);
    }
    return bytes % (1 << 10) == 0 ? fmt::format("{} KiB", bytes >> 10) : fmt::format("{} bytes", bytes);
}

void print_race(const Json &json) {
    fmt::print("{:<26}{:>8.2f} GB/s per rank\n", "libodc", json["gbps"].get<double>());
    fmt::print("{:<26}{:>8.2f} GB/s per rank ({})\n", "bare loop", json["limit_gbps"].get<double>(),
               json["limit"].get<std::string>());
    for (const auto &[title, key] : {std::pair{"ratio", "ratio"}, {"the loop against itself", "limit_self_ratio"}}) {
        const std::string name = key;
        fmt::print("{:<26}{:>8.3f} ({:.3f} to {:.3f})\n", title, json[name].get<double>(),
                   json[name + "_low"].get<double>(), json[name + "_high"].get<double>());
    }
}

void print_network(const Json &json) {
    fmt::print("{:<26}{:>8.2f} GB/s per rank ({:.2f} to {:.2f}), {:.0f} % of the bytes between hosts\n", "libodc",
               json["gbps"].get<double>(), json["gbps_low"].get<double>(), json["gbps_high"].get<double>(),
               100 * json["network_share"].get<double>());
}

void print_sync(const Json &json) {
    fmt::print("{:<26}{:>8.2f} us ({:.2f} to {:.2f})\n", "libodc", json["usec"].get<double>(),
               json["usec_low"].get<double>(), json["usec_high"].get<double>());
    if (json.contains("limit_usec")) {
        fmt::print("{:<26}{:>8.2f} us\n", "bare spin barrier", json["limit_usec"].get<double>());
    }
}

void print(const BenchOptions &options, const Joined &joined, const Json &json) {
    if (options.json) {
        fmt::print("{}\n", json.dump());
        return;
    }
    const bool network = joined.meeting != nullptr;
    fmt::print("odc bench {}: {} {}, {} ranks, {} {}", options.operation, in_words(options.bytes), options.type,
               json["ranks"].get<int>(), options.pairs, network ? "timings" : "pairs");
    if (options.operation != "sync") {
        fmt::print(" of {} operations", json["repeats"].get<uint64_t>());
    }
    fmt::print("\n{}", routes_text(0, joined.routes));
    if (json.contains("hosts")) {
        fmt::print("{}\n", json["hosts"].get<std::string>());
    }
    if (options.operation == "sync") {
        print_sync(json);
    } else if (network) {
        print_network(json);
    } else {
        print_race(json);
    }
    if (network) {
        fmt::print("no bare loop: between hosts a copy of memory is not the limit\n");
    }
}

// That share this host's memory.
int ranks_here(const std::vector<Route> &routes) {
    int ranks = 1;
    for (const Route &route : routes) {
        ranks += route.transport == "shm" ? static_cast<int>(route.ranks.size()) : 0;
    }
    return ranks;
}

uint64_t needed_bytes(const BenchOptions &options, int ranks) {
    const odc_type type = types().at(options.type);
    // Slices of libodc and of the bare loop, and a full-size buffer per rank.
    const uint64_t slices = options.operation == "gather"
                                ? options.bytes
                                : options.bytes / element_bytes(type) * element_bytes(accumulator_of(type));
    return 2 * slices + static_cast<uint64_t>(ranks) * options.bytes;
}

bool between_hosts(const std::vector<Route> &routes) {
    return std::any_of(routes.begin(), routes.end(), [](const Route &route) { return route.transport != "shm"; });
}

// In a job of several hosts every rank throws; rank 0 says why.
void check_shm(const BenchOptions &options, const odc_context *context, const std::vector<Route> &routes) {
    if (options.transport == "shm" && between_hosts(routes)) {
        throw Exit{2,
                   odc_rank(context) == 0
                       ? "--transport shm was asked for, but the job's ranks are on several hosts; leave it out there"
                       : ""};
    }
}

void measure(const BenchOptions &options, const Joined &joined, const std::string &hosts) {
    const std::map<std::string, Json (*)(const Joined &, const BenchOptions &)> operations = {
        {"gather", bench_gather}, {"scatter-add", bench_add}, {"sync", bench_sync}};
    Json json = operations.at(options.operation)(joined, options);
    if (!hosts.empty()) {
        json["hosts"] = hosts;
    }
    if (odc_rank(joined.context) == 0) {
        print(options, joined, json);
    }
}

void run_rank(const BenchOptions &options) {
    const Context context = join("bench", options.ranks);
    const std::vector<Route> routes = routes_of(context.get());
    check_shm(options, context.get(), routes);
    check_memory(needed_bytes(options, ranks_here(routes)));
    if (between_hosts(routes)) {
        const Context meeting = join("bench barrier", options.ranks);
        measure(options, {context.get(), meeting.get(), routes}, "");
        check(odc_shutdown(meeting.get()));
    } else if (options.transport == "fabric") {
        const Context apart = join_apart(context.get());
        measure(options, {apart.get(), context.get(), routes_of(apart.get())},
                "one machine: each rank counts as a host of its own");
        check(odc_shutdown(apart.get()));
    } else {
        measure(options, {context.get(), nullptr, routes}, "");
    }
    check(odc_shutdown(context.get()));
}

void start_ranks(const BenchOptions &options) {
    Launch wanted;
    wanted.ranks = options.ranks == 0 ? 2 : options.ranks;
    wanted.argv = {"/proc/self/exe",
                   "bench",
                   options.operation,
                   "--bytes",
                   std::to_string(options.bytes),
                   "--type",
                   options.type,
                   "--pairs",
                   std::to_string(options.pairs)};
    if (!options.transport.empty()) {
        wanted.argv.insert(wanted.argv.end(), {"--transport", options.transport});
    }
    if (options.json) {
        wanted.argv.push_back("--json");
    }
    wanted.output = Output::Inherit;
    const int status = launch(wanted);
    if (status != 0) {
        throw Exit{status, ""};
    }
}

// Said once, not by each rank.
void check_transport(const std::string &name) {
    odc_transport row = {};
    row.struct_size = sizeof row;
    for (size_t i = 0; odc_get_transport(i, &row) == ODC_OK; ++i) {
        if (row.name == name && row.why_not != nullptr) {
            throw Exit{1, fmt::format("--transport {}: {}", name, row.why_not)};
        }
    }
}

void bench(BenchOptions options) {
    const bool sync = options.operation == "sync";
    if (options.bytes == 0) {
        options.bytes = sync ? 64 << 10 : 64 << 20;
    }
    if (options.pairs == 0) {
        options.pairs = sync ? 1001 : 31;
    }
    check_bytes(options);
    if (inside_a_job()) {
        run_rank(options);
    } else {
        check_transport(options.transport);
        start_ranks(options);
    }
}

}  // namespace

void add_bench(CLI::App &app) {
    CLI::App *verb = app.add_subcommand("bench", "Measure gather, scatter-add or sync against this machine's limit");
    const auto options = std::make_shared<BenchOptions>();
    verb->add_option("operation", options->operation, "gather, scatter-add or sync")
        ->required()
        ->check(CLI::IsMember({"gather", "scatter-add", "sync"}));
    add_whole(verb, "--ranks", options->ranks, {1, 4096},
              "Ranks to start on this host (default: 2; inside a job: its ranks)");
    add_bytes(verb, "--bytes", options->bytes, {1, kMostBytes},
              "Size of the tensor, such as 64MiB (default: 64MiB; sync: 64KiB)");
    verb->add_option("--type", options->type, "Type of the tensor's elements: f32, f64, bf16 or f16")
        ->check(CLI::IsMember({"f32", "f64", "bf16", "f16"}))
        ->capture_default_str();
    verb->add_option("--transport", options->transport,
                     "shm, or fabric: between hosts; on one machine each rank then counts as a host of its own")
        ->check(CLI::IsMember({"shm", "fabric"}));
    add_whole(verb, "--pairs", options->pairs, {1, 1'000'000},
              "Pairs of timings, between hosts timings (default: 31; sync: 1001)");
    verb->add_flag("--json", options->json, "Print one JSON object instead of a table");
    verb->footer(kMethod);
    verb->callback([options] { bench(*options); });
}

}  // namespace odc_tool

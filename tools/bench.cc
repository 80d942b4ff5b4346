// SPDX-License-Identifier: Apache-2.0
// odc bench: how close libodc's operations come to what this machine can do, measured in one run on the same buffers.
#include "bench_race.h"
#include "context.h"
#include "launch.h"
#include "numbers.h"
#include "verbs.h"

#include <fmt/format.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
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
    int pairs = 0;  // 0: 31, or 1001 for sync
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
    "rank.";

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

Json race_json(const BenchOptions &options, int ranks, const RaceResult &result, const std::string &limit) {
    const double gigabytes = static_cast<double>(options.bytes) * 1e-9;
    return {{"op", options.operation},
            {"ranks", ranks},
            {"bytes", options.bytes},
            {"type", options.type},
            {"gbps", gigabytes / result.seconds.median},
            {"limit_gbps", gigabytes / result.limit_seconds.median},
            {"ratio", result.ratio.median},
            {"ratio_low", result.ratio.low},
            {"ratio_high", result.ratio.high},
            {"limit_self_ratio", result.self_ratio.median},
            {"limit_self_ratio_low", result.self_ratio.low},
            {"limit_self_ratio_high", result.self_ratio.high},
            {"pairs", options.pairs},
            {"repeats", result.repeats},
            {"limit", limit}};
}

Json bench_gather(odc_context *context, const BenchOptions &options) {
    const Tensor tensor(context, options.bytes, types().at(options.type));
    Group group(context, GatherRace::shared_bytes(tensor));
    GatherRace gather(context, group, tensor);
    const std::string limit = gather.choose_limit();
    const uint64_t repeats = choose_repeats(group, gather.bare(), 2, 1'000'000);
    const RaceResult result = race(group, gather.odc(), gather.bare(), options.pairs, repeats);
    return race_json(options, group.size(), result, limit);
}

Json bench_add(odc_context *context, const BenchOptions &options) {
    const Tensor tensor(context, options.bytes, types().at(options.type));
    Group group(context, AddRace::shared_bytes(tensor, odc_size(context)));
    AddRace add(context, group, tensor);
    const std::string limit = add.choose_limit();
    const uint64_t repeats = choose_repeats(group, add.bare(), 8, add.most_repeats());
    const RaceResult result = race(group, add.odc(), add.bare(), options.pairs, repeats);
    return race_json(options, group.size(), result, "locked " + limit);
}

Json bench_sync(odc_context *context, const BenchOptions &options) {
    const Tensor tensor(context, options.bytes, types().at(options.type));
    Group group(context, AddRace::shared_bytes(tensor, odc_size(context)));
    AddRace add(context, group, tensor);
    const Contestant odc = add.odc();
    std::vector<double> usec;
    std::vector<double> limit_usec;
    for (int i = 0; i < options.pairs; ++i) {
        odc.prepare();
        odc.operate();
        usec.push_back(1e6 * group.time_from_one_moment([&] { check(odc_minibatch_sync(context)); }));
        add.check_slice();
        limit_usec.push_back(1e6 * group.time_from_one_moment([&] { group.spin_barrier(); }));
    }
    const MedianInterval sync = median_interval(usec);
    return {{"op", options.operation}, {"ranks", group.size()},
            {"bytes", options.bytes},  {"type", options.type},
            {"usec", sync.median},     {"usec_low", sync.low},
            {"usec_high", sync.high},  {"limit_usec", median_interval(limit_usec).median},
            {"pairs", options.pairs}};
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

void print_sync(const Json &json) {
    fmt::print("{:<26}{:>8.2f} us ({:.2f} to {:.2f})\n", "libodc", json["usec"].get<double>(),
               json["usec_low"].get<double>(), json["usec_high"].get<double>());
    fmt::print("{:<26}{:>8.2f} us\n", "bare spin barrier", json["limit_usec"].get<double>());
}

void print(const BenchOptions &options, const Json &json) {
    if (options.json) {
        fmt::print("{}\n", json.dump());
        return;
    }
    fmt::print("odc bench {}: {} {}, {} ranks, {} pairs", options.operation, in_words(options.bytes), options.type,
               json["ranks"].get<int>(), options.pairs);
    if (options.operation == "sync") {
        fmt::print("\n");
        print_sync(json);
    } else {
        fmt::print(" of {} operations\n", json["repeats"].get<uint64_t>());
        print_race(json);
    }
}

uint64_t needed_bytes(const BenchOptions &options, int ranks) {
    const odc_type type = types().at(options.type);
    // Slices of libodc and of the bare loop, and a full-size buffer per rank.
    const uint64_t slices = options.operation == "gather"
                                ? options.bytes
                                : options.bytes / element_bytes(type) * element_bytes(accumulator_of(type));
    return 2 * slices + static_cast<uint64_t>(ranks) * options.bytes;
}

void run_rank(const BenchOptions &options) {
    const Context context = join("bench", options.ranks);
    check_memory(needed_bytes(options, odc_size(context.get())));
    const std::map<std::string, Json (*)(odc_context *, const BenchOptions &)> operations = {
        {"gather", bench_gather}, {"scatter-add", bench_add}, {"sync", bench_sync}};
    const Json json = operations.at(options.operation)(context.get(), options);
    if (odc_rank(context.get()) == 0) {
        print(options, json);
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
    if (options.json) {
        wanted.argv.push_back("--json");
    }
    wanted.output = Launch::Output::Inherit;
    const int status = launch(wanted);
    if (status != 0) {
        throw Exit{status, ""};
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
    add_whole(verb, "--pairs", options->pairs, {1, 1'000'000}, "Pairs of timings (default: 31; sync: 1001)");
    verb->add_flag("--json", options->json, "Print one JSON object instead of a table");
    verb->footer(kMethod);
    verb->callback([options] { bench(*options); });
}

}  // namespace odc_tool

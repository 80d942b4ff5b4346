// SPDX-License-Identifier: Apache-2.0
// odc bench: how close libodc's operations come to this machine's limit, measured in one run on the same buffers.
#include "bench/claim.h"
#include "bench/gpu.h"
#include "bench/nccl.h"
#include "bench/network.h"
#include "bench/race.h"
#include "bench/report.h"
#include "cli/command_line.h"
#include "cli/exit.h"
#include "cli/number_options.h"
#include "cli/verbs.h"
#include "rank/context.h"
#include "rank/routes.h"
#include "run/launch.h"

#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace odc_tool {

namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 50;  // so that the memory of all ranks is counted in 64 bits

const char *const kMethod =
    "Every rank does the operation at the same time on a tensor of --bytes (in the given type; for\n"
    "scatter-add those of the gradient) and, in random order, so does a bare loop in the same processes,\n"
    "with the caller's same buffer and slices of the same size. GB/s are the tensor's bytes by the time\n"
    "from the first rank's start to the last one's end. A timing takes 10 ms or more: operations follow\n"
    "each other without barriers, after one that is not timed. The ratio is the median of the pairs'\n"
    "ratios with its 95 % interval; \"against itself\" shows the ratio of the machine's noise alone. During\n"
    "its first large copies and additions libodc chooses among loops that suit different processors; the\n"
    "last line names the chosen ones and the speed of each.\n"
    "The verdict compares the interval with the bar that docs/performance.md has for these bytes, if any.\n"
    "Pairs during which other programs use more than 20 % of the processors are repeated, half as many as\n"
    "--pairs at most, and the least disturbed ones count. Where others use more than that during these, too,\n"
    "the verdict is \"not resolved\", as it is with fewer than 6 pairs, and the table has no ratios.\n"
    "gather:       the bare loop is memcpy or a non-temporal copy, whichever is faster on this machine.\n"
    "scatter-add:  at least 8 additions per minibatch after one that is not timed (the first one stores\n"
    "              instead of adding); the bare loop adds the same types under spin locks,\n"
    "              each for a part of the size that is fastest on this machine. With --sum exact it does the same\n"
    "              arithmetic, and the default sums are measured, too.\n"
    "claim:        all ranks claim items of one minibatch; claims per second of all together. The bare loop\n"
    "              adds to one atomic counter. Between hosts the time of one claim is measured.\n"
    "sync:         from the moment when all ranks are ready to the last one's return; each rank added to\n"
    "              a tensor of --bytes before. The bare loop is one atomic counter on which all ranks\n"
    "              spin.\n"
    "The slices of the bare loop are in large pages if the system provides them. All bytes and sums are\n"
    "checked. Started inside a job (odc run, torchrun, mpirun, Slurm) odc bench joins that job as one\n"
    "rank.\n"
    "Between hosts, in a job of several hosts or with --transport fabric, there is no bare loop: the\n"
    "limit is the network, not a copy of memory. Ranks start together at a sync, each by its own clock,\n"
    "and the slowest counts; a sync's time includes the difference of the ranks' starts.\n"
    "With --memory cuda slices and buffers are on GPUs. Rank r uses GPU r modulo the number of GPUs that\n"
    "it sees, or that of ODC_DEVICE; ranks may share one. A timing takes 100 ms or more, until the stream\n"
    "is done. With --active one only rank 0 operates, the case for which there is a bar.\n"
    "gather:       the limit is cuMemcpyAsync of the same bytes in memory of this process, on the GPUs\n"
    "              that hold the slices: one copy if all are on one.\n"
    "scatter-add:  the limit is libodc's own kernel on the rank's own memory, in a job of one rank. Also\n"
    "              measured are a plain a += b kernel, and the cost of additions by the owner: copies\n"
    "              into a buffer on the owner's GPU, in pieces of at most 16 MiB, and the plain kernel\n"
    "              there. On one GPU all of this is local, one after the other. If a route is staged, or\n"
    "              with ODC_ADD_BY_OWNER=1, the owner's last part of libodc's addition comes later and is\n"
    "              not included in its time.\n"
    "The host time of each call is measured, too, with all slices published and the GPU idle every eight\n"
    "calls.\n"
    "--peer nccl:  ncclAllGather or ncclReduceScatter (whose sums are of the gradient's type) on the same\n"
    "              GPUs and bytes, by libnccl.so.2 or the file that ODC_NCCL names.";

const std::map<std::string, odc_type> &types() {
    static const std::map<std::string, odc_type> all = {
        {"f32", ODC_F32}, {"bf16", ODC_BF16}, {"f16", ODC_F16}, {"f64", ODC_F64}};
    return all;
}

// The operating system would overcommit, and kill a process later.
void check_memory(uint64_t bytes) {
    const uint64_t available =
        static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    if (bytes > available) {
        throw Exit{1, fmt::format("the benchmark needs {} bytes of memory, but this machine has {}; give fewer --bytes",
                                  bytes, available)};
    }
}

void check_bytes(const BenchOptions &options) {
    const uint64_t element = element_bytes(options.element_type());
    if (options.bytes % element != 0) {
        throw Exit{2, fmt::format("--bytes {} is not a multiple of {}, the bytes of an element of type {}",
                                  options.bytes, element, options.type)};
    }
}

// The contexts that the ranks measure with.
struct Joined {
    odc_context *context;  // has the tensor
    odc_context *barrier;  // between hosts: has no shards; otherwise NULL
    std::vector<Route> routes;
};

NetworkResult time_operation(const Joined &joined, const BenchOptions &options, const Contestant &contestant,
                             uint64_t most) {
    return time_network(joined.barrier, contestant, options.pairs, options.sample_seconds(), most);
}

void bench_gather(const Joined &joined, const BenchOptions &options, Json &json) {
    const Tensor tensor(joined.context, options.bytes, options.element_type());
    if (joined.barrier != nullptr) {
        Gather gather(joined.context, tensor);
        const NetworkResult result = time_operation(joined, options, gather.contestant(), 1'000'000);
        return add_network(json, options, joined.routes, tensor, result);
    }
    Group group(joined.context, BareGather::shared_bytes(tensor));
    Gather gather(joined.context, tensor);
    BareGather bare(group, tensor, gather);
    const std::string limit = bare.choose();
    const uint64_t repeats = choose_repeats(group, bare.contestant(), options.sample_seconds(), 2, 1'000'000);
    add_race(json, options, race(group, gather.contestant(), bare.contestant(), {}, options.pairs, repeats), limit);
}

void bench_add(const Joined &joined, const BenchOptions &options, Json &json) {
    const Sums sums = options.exact() ? Sums::Exact : Sums::Default;
    const uint64_t most = most_additions(odc_size(joined.context), sums);
    const Tensor tensor(joined.context, options.bytes, options.element_type());
    if (joined.barrier != nullptr) {
        Addition addition(joined.context, tensor, sums);
        const NetworkResult result = time_operation(joined, options, addition.contestant(), most);
        return add_network(json, options, joined.routes, tensor, result);
    }
    Group group(joined.context, BareAddition::shared_bytes(tensor, odc_size(joined.context), sums));
    Addition addition(joined.context, tensor, sums);
    std::optional<Addition> plain;
    if (options.exact()) {
        plain.emplace(joined.context, tensor, Sums::Default);
    }
    BareAddition bare(group, tensor, sums);
    const std::string limit = bare.choose();
    const uint64_t repeats = choose_repeats(group, bare.contestant(), options.sample_seconds(), 8, most);
    std::vector<Contestant> others;
    if (plain) {
        others.push_back(plain->contestant());
    }
    const RaceResult result = race(group, addition.contestant(), bare.contestant(), others, options.pairs, repeats);
    add_race(json, options, result, "locked " + limit);
    if (plain) {
        add_other(json, options, "default", "the default sums", result, 0);
    }
}

void bench_sync(const Joined &joined, const BenchOptions &options, Json &json) {
    const Tensor tensor(joined.context, options.bytes, options.element_type());
    std::optional<Group> group;
    if (joined.barrier == nullptr) {
        group.emplace(joined.context, 0);
    }
    Addition addition(joined.context, tensor, Sums::Default);
    const Contestant odc = {[add = addition.contestant()] {
                                add.prepare();
                                add.operate();
                            },
                            [&] { check(odc_minibatch_sync(joined.context)); }, [&] { addition.check_slice(); }};
    if (group) {
        add_sync(json, options, race_sync(*group, odc, options.pairs));
    } else {
        add_interval(json, "usec", time_network_sync(joined.barrier, odc, options.pairs));
    }
}

void bench_claim(const Joined &joined, const BenchOptions &options, Json &json) {
    if (joined.barrier != nullptr) {
        const NetworkResult result = time_operation(joined, options, claims(joined.context), 1'000'000);
        const MedianInterval &seconds = result.seconds;
        json["repeats"] = result.repeats;
        return add_interval(json, "usec", {1e6 * seconds.median, 1e6 * seconds.low, 1e6 * seconds.high});
    }
    Group group(joined.context, sizeof(uint64_t));
    add_claims(json, options, race_claims(group, joined.context, options.pairs, options.sample_seconds()));
}

// The ranks that share this host's memory.
int ranks_here(const std::vector<Route> &routes) {
    int ranks = 1;
    for (const Route &route : routes) {
        ranks += route.between_hosts ? 0 : static_cast<int>(route.ranks.size());
    }
    return ranks;
}

uint64_t needed_bytes(const BenchOptions &options, int ranks) {
    const odc_type type = options.element_type();
    // The slices of libodc and of the bare loop, and a full-size buffer per rank.
    const uint64_t slices = options.operation == "gather"
                                ? options.bytes
                                : options.bytes / element_bytes(type) *
                                      (options.exact() ? sizeof(int64_t) : element_bytes(accumulator_of(type)));
    return 2 * slices + static_cast<uint64_t>(ranks) * options.bytes;
}

// In a job of several hosts every rank throws; rank 0's message explains it.
void check_shm(const BenchOptions &options, const odc_context *context, const std::vector<Route> &routes) {
    if (options.transport == "shm" && rank_elsewhere(routes)) {
        throw Exit{2,
                   odc_rank(context) == 0
                       ? "--transport shm was asked for, but the job's ranks are on several hosts; leave it out there"
                       : ""};
    }
}

void measure(const BenchOptions &options, const Joined &joined, const std::string &hosts) {
    const std::map<std::string, void (*)(const Joined &, const BenchOptions &, Json &)> operations = {
        {"claim", bench_claim}, {"gather", bench_gather}, {"scatter-add", bench_add}, {"sync", bench_sync}};
    Json json = result_json(options, odc_size(joined.context), joined.routes);
    operations.at(options.operation)(joined, options, json);
    if (!hosts.empty()) {
        json["hosts"] = hosts;
    }
    if (odc_rank(joined.context) == 0) {
        print_result(options, joined.routes, json);
    }
}

void run_rank(const BenchOptions &options) {
    const Context context = join("bench", options.ranks);
    const std::vector<Route> routes = routes_of(context.get());
    check_shm(options, context.get(), routes);
    check_memory(needed_bytes(options, ranks_here(routes)));
    if (rank_elsewhere(routes)) {
        const Context barrier = join("bench barrier", options.ranks);
        measure(options, {context.get(), barrier.get(), routes}, "");
        check(odc_shutdown(barrier.get()));
    } else if (options.transport == "fabric") {
        const Context apart = join_apart(context.get(), "apart", odc_size(context.get()));
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
    check_environment(wanted.ranks);
    wanted.argv = {"/proc/self/exe", "bench", options.operation};
    for (const auto &[name, value] :
         {std::pair<const char *, std::string>{"--bytes", options.bytes == 0 ? "" : std::to_string(options.bytes)},
          {"--type", options.type},
          {"--pairs", std::to_string(options.pairs)},
          {"--sample-ms", std::to_string(options.sample_ms)},
          {"--memory", options.memory},
          {"--transport", options.transport},
          {"--active", options.active},
          {"--peer", options.peer},
          {"--sum", options.sum}}) {
        if (!value.empty()) {
            wanted.argv.insert(wanted.argv.end(), {name, value});
        }
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

// `asked` is the option that needs it.
void check_transport(const std::string &asked, const std::string &name) {
    odc_transport row = {};
    row.struct_size = sizeof row;
    for (size_t i = 0; odc_get_transport(i, &row) == ODC_OK; ++i) {
        if (row.name == name && row.why_not != nullptr) {
            throw Exit{1, fmt::format("{} {}: {}", asked, name, row.why_not)};
        }
    }
}

void check_combination(const BenchOptions &options) {
    const auto refuse = [](const std::string &text) { throw Exit{2, text}; };
    if (options.exact() && (options.operation != "scatter-add" || options.type == "f64")) {
        refuse("--sum exact is for scatter-add of f32, bf16 and f16");
    }
    if (options.operation == "claim" && (options.on_gpus() || options.bytes != 0)) {
        refuse(fmt::format("a claim moves no bytes: leave {} out", options.bytes != 0 ? "--bytes" : "--memory cuda"));
    }
    if (!options.on_gpus()) {
        if (!options.active.empty() || !options.peer.empty()) {
            refuse(fmt::format("{} is for --memory cuda", options.active.empty() ? "--peer" : "--active"));
        }
        return;
    }
    if (!options.transport.empty()) {
        refuse("--transport is for --memory host: GPU memory is measured inside a host");
    }
    if (options.operation == "sync" && (!options.active.empty() || !options.peer.empty())) {
        refuse("a sync is of all ranks: leave --active and --peer out");
    }
    if (options.one_active() && !options.peer.empty()) {
        refuse("--active one and --peer nccl exclude each other: NCCL's operations are of all ranks");
    }
}

void fill_defaults(BenchOptions &options) {
    const bool sync = options.operation == "sync";
    if (options.bytes == 0 && options.operation != "claim") {
        options.bytes = sync ? 64 << 10 : options.on_gpus() ? 256 << 20 : 64 << 20;
    }
    if (options.pairs == 0) {
        options.pairs = sync ? 1001 : 31;
    }
    if (options.sample_ms == 0) {
        options.sample_ms = options.on_gpus() ? 100 : 10;
    }
}

void bench(BenchOptions options) {
    check_combination(options);
    fill_defaults(options);
    check_bytes(options);
    const bool in_job = inside_a_job();
    if (options.on_gpus()) {
        check_transport("--memory", "cuda");
        if (!options.peer.empty()) {
            check_nccl();
        }
    } else if (!in_job) {  // otherwise each rank would report it
        check_transport("--transport", options.transport);
    }
    if (!in_job) {
        start_ranks(options);
    } else if (options.on_gpus()) {
        run_gpu_rank(options);
    } else {
        run_rank(options);
    }
}

}  // namespace

odc_type BenchOptions::element_type() const { return types().at(type); }

void add_bench(CLI::App &app) {
    CLI::App *verb =
        app.add_subcommand("bench", "Measure gather, scatter-add, sync or claim against this machine's limit");
    const auto options = std::make_shared<BenchOptions>();
    accept_only(verb->add_option("operation", options->operation, "gather, scatter-add, sync or claim"),
                {"gather", "scatter-add", "sync", "claim"})
        ->required();
    add_whole(verb, "--ranks", options->ranks, {1, 4096},
              "Ranks to start on this host (default: 2; inside a job: its ranks)");
    add_bytes(verb, "--bytes", options->bytes, {1, kMostBytes},
              "Size of the tensor, such as 64MiB (default: 64MiB, on GPUs 256MiB; sync: 64KiB)");
    accept_only(verb->add_option("--type", options->type, "Type of the tensor's elements: f32, f64, bf16 or f16"),
                {"f32", "f64", "bf16", "f16"})
        ->capture_default_str();
    accept_only(
        verb->add_option("--sum", options->sum, "exact: sums whose bits do not depend on the order (scatter-add)"),
        {"exact"});
    accept_only(
        verb->add_option("--transport", options->transport,
                         "shm, or fabric: between hosts; on one machine each rank then counts as a host of its own"),
        {"shm", "fabric"});
    accept_only(verb->add_option("--memory", options->memory,
                                 "host, or cuda: slices and buffers on GPUs, over which ranks are distributed"),
                {"host", "cuda"})
        ->capture_default_str();
    accept_only(
        verb->add_option("--active", options->active, "On GPUs: all (the default), or one: only rank 0 operates"),
        {"all", "one"});
    accept_only(verb->add_option("--peer", options->peer, "On GPUs with one rank each: also measure nccl"), {"nccl"});
    add_whole(verb, "--pairs", options->pairs, {1, 1'000'000},
              "Pairs of timings, or between hosts timings (default: 31; sync: 1001)");
    add_whole(verb, "--sample-ms", options->sample_ms, {1, 60'000},
              "Minimum duration of a timing, in milliseconds (default: 10, on GPUs 100)");
    verb->add_flag("--json", options->json, "Print one JSON object instead of a table");
    verb->footer(kMethod);
    verb->callback([options] { bench(*options); });
}

}  // namespace odc_tool

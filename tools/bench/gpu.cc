// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu.h"

#include "bench/gpu_limit.h"
#include "bench/gpu_operation.h"
#include "bench/group.h"
#include "bench/nccl.h"
#include "bench/race.h"
#include "bench/report.h"
#include "cli/exit.h"
#include "gpu/device.h"
#include "rank/clock.h"
#include "rank/context.h"
#include "rank/routes.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

namespace odc_tool {

namespace {

constexpr double kMargin = 1.25;      // a timing may be faster than those it was planned by
constexpr uint64_t kCallsAtOnce = 8;  // far fewer than a stream takes before a call blocks

// A rank's GPU, known to all ranks.
struct RankGpu {
    cuda::Uuid uuid;
    int ordinal;  // in that rank's process
    char name[64];
    size_t free_bytes;
};

// A rank's context, GPU and options.
struct Bench {
    const BenchOptions &options;
    odc_context *context;
    const Gpu &gpu;
    Group &group;
    const std::vector<RankGpu> &gpus;  // by rank

    bool is_active() const { return !options.one_active() || group.rank() == 0; }
    int adders() const { return options.one_active() ? 1 : group.size(); }
    Sums sums() const { return options.exact() ? Sums::Exact : Sums::Default; }
    uint64_t most() const { return most_additions(adders(), sums()); }
};

// The GPU of ODC_DEVICE, which libodc has checked, or this rank's turn.
int choose_device(int rank) {
    const char *given = std::getenv("ODC_DEVICE");
    if (given != nullptr && *given != '\0') {
        return std::atoi(given + std::strlen("cuda:"));
    }
    return rank % gpu_count();
}

// Collective.
std::vector<RankGpu> exchange(odc_context *context, const Gpu &gpu) {
    const auto ranks = static_cast<size_t>(odc_size(context));
    Group group(context, ranks * sizeof(RankGpu));
    auto *const table = reinterpret_cast<RankGpu *>(group.memory());
    RankGpu &mine = table[group.rank()];
    mine = {gpu.uuid(), gpu.ordinal(), {}, gpu.room().free};
    std::strncpy(mine.name, gpu.name().c_str(), sizeof(mine.name) - 1);
    group.barrier();
    return {table, table + ranks};
}

// Errors that all ranks find: each leaves, and rank 0 reports the reason.
[[noreturn]] void leave_all(int status, const odc_context *context, const std::string &text) {
    throw Exit{status, odc_rank(context) == 0 ? text : ""};
}

void check_one_host(const odc_context *context) {
    if (rank_elsewhere(routes_of(context))) {
        leave_all(2, context, "--memory cuda measures the GPUs of one host, but the job's ranks are on several");
    }
}

void check_own_gpus(const odc_context *context, const std::vector<RankGpu> &gpus) {
    for (size_t rank = 0; rank < gpus.size(); ++rank) {
        for (size_t other = 0; other < rank; ++other) {
            if (gpus[rank].uuid == gpus[other].uuid) {
                leave_all(2, context,
                          fmt::format("--peer nccl: NCCL refuses two ranks on one GPU, and ranks {} and {} are on "
                                      "cuda:{} ({}); give each a GPU of its own, such as by fewer --ranks",
                                      other, rank, gpus[other].ordinal, gpus[other].name));
            }
        }
    }
}

// A rank's memory on its GPU: its slice and what it measures with.
uint64_t needed_bytes(const BenchOptions &options, uint64_t ranks, size_t rank) {
    const uint64_t tensor = options.bytes;
    const odc_type type = options.element_type();
    const uint64_t sums = tensor / element_bytes(type) * element_bytes(accumulator_of(type));
    // libodc's sums. Exact ones have a bit for each element besides (a byte is counted here), and default ones are measured, too.
    const uint64_t own = options.exact() ? tensor / element_bytes(type) * (sizeof(int64_t) + 1) : sums;
    const uint64_t slice = (options.operation == "gather" ? tensor : options.exact() ? own + sums : sums) / ranks;
    if (options.one_active() && rank != 0) {
        return slice;
    }
    if (options.operation == "sync") {
        return slice + tensor;
    }
    const uint64_t peer = options.peer.empty() ? 0 : tensor + tensor / ranks;
    const uint64_t limits = options.operation == "gather" ? tensor : own + 2 * sums + 2 * OwnerAddition::kPieceBytes;
    return slice + peer + tensor + limits;
}

void check_room(const odc_context *context, const BenchOptions &options, const std::vector<RankGpu> &gpus) {
    for (const RankGpu &gpu : gpus) {
        uint64_t needed = 0;
        for (size_t rank = 0; rank < gpus.size(); ++rank) {
            needed += gpus[rank].uuid == gpu.uuid ? needed_bytes(options, gpus.size(), rank) : 0;
        }
        if (needed > gpu.free_bytes) {
            leave_all(1, context,
                      fmt::format("the benchmark needs {} bytes of cuda:{} ({}), but only {} are free; give fewer "
                                  "--bytes or --ranks",
                                  needed, gpu.ordinal, gpu.name, gpu.free_bytes));
        }
    }
}

Json gpus_json(const std::vector<RankGpu> &gpus) {
    Json json = Json::array();
    for (size_t rank = 0; rank < gpus.size(); ++rank) {
        const std::string uuid = uuid_text(gpus[rank].uuid);
        auto same = std::find_if(json.begin(), json.end(), [&](const Json &one) { return one["uuid"] == uuid; });
        if (same == json.end()) {
            json.push_back({{"device", fmt::format("cuda:{}", gpus[rank].ordinal)},
                            {"name", gpus[rank].name},
                            {"uuid", uuid},
                            {"ranks", Json::array()}});
            same = json.end() - 1;
        }
        (*same)["ranks"].push_back(rank);
    }
    return json;
}

GpuTeam team_of(const Bench &bench) {
    std::vector<int> ordinals;
    for (const RankGpu &gpu : bench.gpus) {
        ordinals.push_back(gpu_of(gpu.uuid));
    }
    return {bench.gpu, bench.group.rank(), ordinals};
}

// The time that the caller's thread spends in a call; the GPU is idle at the first of every few calls.
std::vector<double> host_usec(const Bench &bench, const Contestant &contestant) {
    std::vector<double> usec;
    contestant.prepare();
    bench.group.barrier();
    contestant.operate();
    contestant.synchronize();
    const uint64_t calls = std::min(kCallsAtOnce * static_cast<uint64_t>(bench.options.pairs), bench.most());
    for (uint64_t i = 0; i < calls; ++i) {
        const int64_t begin_ns = now_ns();
        contestant.operate();
        usec.push_back(static_cast<double>(now_ns() - begin_ns) * 1e-3);
        if (i % kCallsAtOnce == kCallsAtOnce - 1) {
            contestant.synchronize();
        }
    }
    contestant.synchronize();
    contestant.finish();
    return usec;
}

void add_host_time(Json &json, const Bench &bench, const Contestant &contestant) {
    const std::vector<double> usec = host_usec(bench, contestant);
    add_interval(json, "host_usec", median_interval(usec));
    json["host_calls"] = usec.size();
}

RaceResult run_race(const Bench &bench, const Contestant &odc, const Contestant &limit,
                    const std::vector<Contestant> &others) {
    const uint64_t repeats =
        choose_repeats(bench.group, limit, kMargin * bench.options.sample_seconds(), 2, bench.most());
    return race(bench.group, odc, limit, others, bench.options.pairs, repeats);
}

// NCCL takes part if it was asked for.
class Peer {
public:
    explicit Peer(const Bench &bench) {
        if (!bench.options.peer.empty()) {
            nccl_.emplace(bench.group, bench.gpu);
        }
    }
    void join(std::vector<Contestant> &others, Contestant (Nccl::*operation)(const Layout &), const Layout &layout) {
        if (nccl_) {
            others.push_back(((*nccl_).*operation)(layout));
        }
    }
    void report(Json &json, const BenchOptions &options, const RaceResult &result) const {
        if (nccl_) {
            add_other(json, options, "nccl", "NCCL", result, result.others.size() - 1);
            json["nccl_version"] = nccl_->version();
        }
    }

private:
    std::optional<Nccl> nccl_;
};

void bench_gather(const Bench &bench, Json &json) {
    struct Active {
        GpuTensor tensor;
        PlainCopy plain;

        Active(const Gpu &gpu, const Layout &layout, GpuTeam &team) : tensor(gpu, layout), plain(team, tensor) {}
    };
    const Layout layout(bench.group.size(), bench.options.bytes, bench.options.element_type());
    GpuTeam team = team_of(bench);
    const GpuGather gather(bench.context, bench.gpu, layout);
    std::optional<Active> active;
    if (bench.is_active()) {
        active.emplace(bench.gpu, layout, team);
    }
    Peer peer(bench);
    std::vector<Contestant> others;
    peer.join(others, &Nccl::gather, layout);
    const Contestant odc = gather.contestant(active ? &active->tensor : nullptr);
    const RaceResult result = run_race(bench, odc, active ? active->plain.contestant() : parked(), others);
    add_race(json, bench.options, result, active ? active->plain.text() : "");
    peer.report(json, bench.options, result);
    add_host_time(json, bench, odc);
}

// What an active rank's addition to all slices is compared with.
struct ActiveAdder {
    Layout own_layout;
    Context alone;
    GpuTensor tensor;
    GpuAddition own;
    PlainAddition plain;
    std::optional<OwnerAddition> owner;

    ActiveAdder(const Bench &bench, const Layout &layout, GpuTeam &team)
        : own_layout(1, layout.bytes(), layout.type()),
          alone(join_alone(fmt::format("bench alone {}", bench.group.rank()).c_str(), bench.gpu.device().c_str())),
          tensor(bench.gpu, layout), own(alone.get(), bench.gpu, own_layout, 1, bench.sums()), plain(tensor) {
        if (OwnerAddition::why_not(team, layout).empty()) {
            owner.emplace(team, tensor);
        }
    }
};

void bench_add(const Bench &bench, Json &json) {
    const Layout layout(bench.group.size(), bench.options.bytes, bench.options.element_type());
    GpuTeam team = team_of(bench);
    GpuAddition addition(bench.context, bench.gpu, layout, bench.adders(), bench.sums());
    std::optional<GpuAddition> plain;
    if (bench.options.exact()) {
        plain.emplace(bench.context, bench.gpu, layout, bench.adders(), Sums::Default);
    }
    std::optional<ActiveAdder> active;
    if (bench.is_active()) {
        active.emplace(bench, layout, team);
    }
    Peer peer(bench);
    std::vector<Contestant> others = {active ? active->plain.contestant() : parked(),
                                      active && active->owner ? active->owner->contestant() : parked()};
    const GpuTensor *const tensor = active ? &active->tensor : nullptr;
    if (plain) {
        others.push_back(plain->contestant(tensor));
    }
    peer.join(others, &Nccl::addition, layout);
    const Contestant odc = addition.contestant(tensor);
    const RaceResult result = run_race(bench, odc, active ? active->own.contestant(tensor) : parked(), others);
    add_race(json, bench.options, result, "libodc's kernel on own memory, a job of one rank");
    add_other(json, bench.options, "plain", "the plain a += b", result, 0);
    if (active && active->owner) {
        add_other(json, bench.options, "owner", "the owner's additions", result, 1);
        json["owner"] = active->owner->text();
    } else {
        json["owner_why_not"] = OwnerAddition::why_not(team, layout);
    }
    if (plain) {
        add_other(json, bench.options, "default", "the default sums", result, 2);
    }
    peer.report(json, bench.options, result);
    add_host_time(json, bench, odc);
}

void bench_sync(const Bench &bench, Json &json) {
    const Layout layout(bench.group.size(), bench.options.bytes, bench.options.element_type());
    const GpuTensor tensor(bench.gpu, layout);
    GpuAddition addition(bench.context, bench.gpu, layout, bench.adders(), bench.sums());
    const Contestant odc = {[add = addition.contestant(&tensor)] {
                                add.prepare();
                                add.operate();
                                add.synchronize();
                            },
                            [&] { check(odc_minibatch_sync(bench.context)); }, [&] { addition.check_slice(); }};
    add_sync(json, bench.options, race_sync(bench.group, odc, bench.options.pairs));
}

void measure(const Bench &bench) {
    const std::vector<Route> routes = routes_of(bench.context, ODC_GPU_MEMORY);
    Json json = result_json(bench.options, bench.group.size(), routes);
    if (bench.options.operation != "sync") {
        json["active"] = bench.options.one_active() ? "one" : "all";
    }
    json["gpus"] = gpus_json(bench.gpus);
    if (bench.options.operation == "gather") {
        bench_gather(bench, json);
    } else if (bench.options.operation == "scatter-add") {
        bench_add(bench, json);
    } else {
        bench_sync(bench, json);
    }
    if (bench.group.rank() == 0) {
        print_result(bench.options, routes, json);
    }
}

}  // namespace

void run_gpu_rank(const BenchOptions &options) {
    const Context job = join("bench", options.ranks);
    check_one_host(job.get());
    const int rank = odc_rank(job.get());
    const Gpu gpu(choose_device(rank));
    const std::vector<RankGpu> gpus = exchange(job.get(), gpu);
    if (!options.peer.empty()) {
        check_own_gpus(job.get(), gpus);
    }
    check_room(job.get(), options, gpus);
    Group group(job.get(), Nccl::kIdBytes);
    const Context context = join("bench gpu", options.ranks, gpu.device().c_str());
    const Bench bench{options, context.get(), gpu, group, gpus};
    measure(bench);
    check(odc_shutdown(context.get()));
    check(odc_shutdown(job.get()));
}

}  // namespace odc_tool

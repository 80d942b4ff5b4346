// SPDX-License-Identifier: Apache-2.0
#include "bench/nccl.h"

#include "bench/limit.h"
#include "cli/exit.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <future>
#include <thread>

namespace odc_tool {

namespace {

constexpr auto kNcclTimeout = std::chrono::seconds(120);
constexpr int kSum = 0;

struct Id {
    char bytes[Nccl::kIdBytes];
};

// NCCL's binary interface; results are 0, or an error.
struct Library {
    int (*get_version)(int *version);
    int (*get_id)(Id *id);
    int (*join)(void **communicator, int ranks, Id id, int rank);
    int (*leave)(void *communicator);
    int (*all_gather)(const void *from, void *to, size_t count, int type, void *communicator, void *stream);
    int (*reduce_scatter)(const void *from, void *to, size_t count, int type, int operation, void *communicator,
                          void *stream);
    const char *(*error_text)(int result);
};

template <class Pointer>
void get(void *library, const char *name, Pointer &function) {
    function = reinterpret_cast<Pointer>(dlsym(library, name));
    if (function == nullptr) {
        throw Exit{1, fmt::format("--peer nccl: the library lacks {}; install a newer NCCL", name)};
    }
}

Library load() {
    const char *given = std::getenv("ODC_NCCL");
    const std::string file = given != nullptr && *given != '\0' ? given : "libnccl.so.2";
    void *opened = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (opened == nullptr) {
        const char *why = dlerror();
        throw Exit{1, fmt::format("--peer nccl: {}; NCCL is optional: install libnccl2, or the wheel nvidia-nccl-cu13 "
                                  "and let ODC_NCCL name its nvidia/nccl/lib/libnccl.so.2",
                                  why != nullptr ? why : fmt::format("{} cannot be loaded", file))};
    }
    Library library{};
    get(opened, "ncclGetVersion", library.get_version);
    get(opened, "ncclGetUniqueId", library.get_id);
    get(opened, "ncclCommInitRank", library.join);
    get(opened, "ncclCommDestroy", library.leave);
    get(opened, "ncclAllGather", library.all_gather);
    get(opened, "ncclReduceScatter", library.reduce_scatter);
    get(opened, "ncclGetErrorString", library.error_text);
    return library;
}

const Library &nccl() {
    static const Library one = load();
    return one;
}

void check_result(int result, const char *call) {
    if (result != 0) {
        throw Exit{1, fmt::format("{} failed: {}", call, nccl().error_text(result))};
    }
}

int type_number(odc_type type) {
    switch (type) {
        case ODC_F64: return 8;
        case ODC_BF16: return 9;
        case ODC_F16: return 6;
        default: return 7;
    }
}

// In a thread, since it waits forever for a rank that does not come.
void *join(const Gpu &gpu, int ranks, const Id &id, int rank) {
    struct Outcome {
        int result;
        void *communicator;
    };
    std::promise<Outcome> promise;
    std::future<Outcome> future = promise.get_future();
    std::thread([&gpu, ranks, id, rank, promise = std::move(promise)]() mutable {
        const Gpu::Scope scope(gpu);
        Outcome joined{};
        joined.result = nccl().join(&joined.communicator, ranks, id, rank);
        promise.set_value(joined);
    }).detach();
    if (future.wait_for(kNcclTimeout) != std::future_status::ready) {
        throw Exit{1, fmt::format("ncclCommInitRank has not returned in {} s", kNcclTimeout.count())};
    }
    const Outcome joined = future.get();
    check_result(joined.result, "ncclCommInitRank");
    return joined.communicator;
}

}  // namespace

void check_nccl() { nccl(); }

Nccl::Nccl(Group &group, const Gpu &gpu) : group_(group), gpu_(gpu) {
    Id id{};
    if (group_.rank() == 0) {
        check_result(nccl().get_id(&id), "ncclGetUniqueId");
        std::memcpy(group_.memory(), &id, sizeof(id));
    }
    group_.barrier();
    std::memcpy(&id, group_.memory(), sizeof(id));
    communicator_ = join(gpu_, group_.size(), id, group_.rank());
}

// It waits for the other ranks, which may be gone.
Nccl::~Nccl() {
    if (std::uncaught_exceptions() == 0) {
        nccl().leave(communicator_);
    }
}

std::string Nccl::version() const {
    int version = 0;
    check_result(nccl().get_version(&version), "ncclGetVersion");
    return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

void Nccl::make_buffers(const Layout &layout, uint64_t from, uint64_t to) {
    from_ = std::make_unique<GpuMemory>(gpu_, from * element_bytes(layout.type()));
    to_ = std::make_unique<GpuMemory>(gpu_, to * element_bytes(layout.type()));
}

Contestant Nccl::gather(const Layout &layout) {
    const int rank = group_.rank();
    const uint64_t chunk = layout.chunk();
    const uint64_t all = chunk * static_cast<uint64_t>(group_.size());
    make_buffers(layout, chunk, all);
    fill_gpu(gpu_, layout.type(), from_->start(), layout.first(rank), layout.count(rank));
    return {[this, &layout, all] {
                gpu_.clear(to_->start(), all * element_bytes(layout.type()));
                gpu_.synchronize();
            },
            [this, &layout, chunk] {
                const Gpu::Scope scope(gpu_);
                check_result(nccl().all_gather(from_->start(), to_->start(), chunk, type_number(layout.type()),
                                               communicator_, gpu_.stream()),
                             "ncclAllGather");
            },
            [this, &layout] {
                check_gpu(gpu_, layout.type(), to_->start(), 0, layout.numel(), 1, "the bytes of NCCL's all-gather");
            },
            [this] { gpu_.synchronize(); }};
}

Contestant Nccl::addition(const Layout &layout) {
    const int rank = group_.rank();
    const uint64_t chunk = layout.chunk();
    const auto ranks = static_cast<uint64_t>(group_.size());
    make_buffers(layout, chunk * ranks, chunk);
    fill_gpu(gpu_, layout.type(), from_->start(), 0, layout.numel());
    return {[this, &layout, chunk] {
                gpu_.clear(to_->start(), chunk * element_bytes(layout.type()));
                gpu_.synchronize();
            },
            [this, &layout, chunk] {
                const Gpu::Scope scope(gpu_);
                check_result(nccl().reduce_scatter(from_->start(), to_->start(), chunk, type_number(layout.type()),
                                                   kSum, communicator_, gpu_.stream()),
                             "ncclReduceScatter");
            },
            [this, &layout, rank, ranks] {
                check_gpu(gpu_, layout.type(), to_->start(), layout.first(rank), layout.count(rank), ranks,
                          "the sums of NCCL's reduce-scatter");
            },
            [this] { gpu_.synchronize(); }};
}

}  // namespace odc_tool

// SPDX-License-Identifier: Apache-2.0
// Copying and adding in host memory by each loop of host_kernels.h, and by the one that it chooses ("chosen"): from the cache
// (4 KiB in the first level, 256 KiB in the second) and from memory. Bytes per second count the copied bytes, and the gradients
// that are stored or added.
#include "memory/host_kernels.h"

#include <benchmark/benchmark.h>
#include <odc/odc.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "base/element_type.h"
#include "benchmarks.h"

namespace {

using odc::Sum;

struct Size {
    const char *name;
    size_t bytes;
};
constexpr Size kSizes[] = {{"4KiB", 4 << 10}, {"256KiB", 256 << 10}, {"64MiB", 64 << 20}};

// A buffer of the largest size, shared by all benchmarks, so that only the first one pays for page faults. All zero, which no type
// reads as a subnormal number.
class Buffer {
public:
    explicit Buffer(size_t bytes) : pages_(bytes / sizeof(Page)) {}
    void *data() { return pages_.data(); }

private:
    struct alignas(4096) Page {
        std::byte bytes[4096] = {};
    };
    std::vector<Page> pages_;
};

void *source() {
    static Buffer buffer(kSizes[std::size(kSizes) - 1].bytes);
    return buffer.data();
}

// With room for sums, which are wider than bf16 and f16.
void *target() {
    static Buffer buffer(2 * kSizes[std::size(kSizes) - 1].bytes);
    return buffer.data();
}

template <class Copy>
void copy(benchmark::State &state, size_t bytes, const Copy &by) {
    void *const to = target();
    const void *const from = source();
    for (auto _ : state) {
        by(to, from, bytes);
        benchmark::ClobberMemory();
    }
    state.SetBytesProcessed(static_cast<int64_t>(bytes) * state.iterations());
}

template <class Add>
void add(benchmark::State &state, int32_t type, size_t bytes, const Add &by) {
    const size_t count = bytes / odc::element_size(type);
    void *const sums = target();
    const void *const gradients = source();
    for (auto _ : state) {
        by(sums, gradients, count);
        benchmark::ClobberMemory();
    }
    state.SetBytesProcessed(static_cast<int64_t>(bytes) * state.iterations());
}

void register_copies(const Size &size) {
    const auto one = [&](const std::string &loop, const auto &by) {
        benchmark::RegisterBenchmark(("copy/" + loop + "/" + size.name).c_str(),
                                     [=](benchmark::State &state) { copy(state, size.bytes, by); });
    };
    one("chosen", odc::copy_bytes);
    for (const odc::CopyLoop loop : odc::kCopyLoops) {
        one(odc::loop_name(loop),
            [=](void *to, const void *from, size_t bytes) { odc::copy_bytes_by(loop, to, from, bytes); });
    }
}

void register_adds(Sum sum, int32_t type, const Size &size) {
    const std::string verb = sum == Sum::Add ? "add/" : "store/";
    const auto one = [&](const std::string &loop, const auto &by) {
        benchmark::RegisterBenchmark((verb + odc::element_name(type) + "/" + loop + "/" + size.name).c_str(),
                                     [=](benchmark::State &state) { add(state, type, size.bytes, by); });
    };
    one("chosen", [=](void *sums, const void *gradients, size_t count) {
        odc::add_elements(sum, type, sums, gradients, count, count);
    });
    for (const odc::AddLoop loop : odc::kAddLoops) {
        one(odc::loop_name(loop), [=](void *sums, const void *gradients, size_t count) {
            odc::add_elements_by(loop, sum, type, sums, gradients, count);
        });
    }
}

}  // namespace

void register_memory() {
    for (const Size &size : kSizes) {
        register_copies(size);
        for (const int32_t type : {ODC_F32, ODC_F64, ODC_BF16, ODC_F16}) {
            register_adds(Sum::Store, type, size);
            register_adds(Sum::Add, type, size);
        }
    }
}

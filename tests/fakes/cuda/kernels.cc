// SPDX-License-Identifier: Apache-2.0
#include "kernels.h"

#include <atomic>
#include <string_view>

namespace {

struct AtomicAdditions {
    static constexpr unsigned kWidth = 4;

    template <class Accumulator>
    static void one(Accumulator *to, Accumulator value) {
        std::atomic_ref<Accumulator>(*to).fetch_add(value, std::memory_order_relaxed);
    }
    static void four(float *to, float a, float b, float c, float d) {
        one(to, a);
        one(to + 1, b);
        one(to + 2, c);
        one(to + 3, d);
    }
};

struct PlainAdditions {
    static constexpr unsigned kWidth = 1;

    template <class Accumulator>
    static void one(Accumulator *to, Accumulator value) {
        *to += value;
    }
};

constexpr std::string_view kPlain = "odc_plain_add_";

template <class Gradient, class Accumulator, class Reduce = AtomicAdditions>
void run_add(const odc::Addends &additions, unsigned blocks, unsigned threads) {
    for (unsigned block = 0; block < blocks; ++block) {
        for (unsigned thread = 0; thread < threads; ++thread) {
            odc::add<Gradient, Accumulator, Reduce>(additions, block, blocks, thread, threads);
        }
    }
}

struct Kernel {
    std::string_view name;
    void (*run)(const odc::Addends &additions, unsigned blocks, unsigned threads);
};
constexpr Kernel kKernels[] = {
    {"odc_add_f32", run_add<float, float>},
    {"odc_add_f64", run_add<double, double>},
    {"odc_add_bf16", run_add<odc::Bfloat16, float>},
    {"odc_add_f16", run_add<odc::Float16, float>},
    {"odc_plain_add_f32", run_add<float, float, PlainAdditions>},
    {"odc_plain_add_f64", run_add<double, double, PlainAdditions>},
    {"odc_plain_add_bf16", run_add<odc::Bfloat16, float, PlainAdditions>},
    {"odc_plain_add_f16", run_add<odc::Float16, float, PlainAdditions>},
};

}  // namespace

bool is_plain(const char *name) { return std::string_view(name).starts_with(kPlain); }

bool run_kernel(const char *name, unsigned grid_x, unsigned block_x, void **parameters) {
    for (const Kernel &kernel : kKernels) {
        if (kernel.name == name) {
            kernel.run(*static_cast<const odc::Addends *>(parameters[0]), grid_x, block_x);
            return true;
        }
    }
    return false;
}

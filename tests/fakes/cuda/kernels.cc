// SPDX-License-Identifier: Apache-2.0
#include "kernels.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <string_view>
#include <vector>

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
void run_add(const void *parameter, unsigned blocks, unsigned threads) {
    const auto &additions = *static_cast<const odc::Addends *>(parameter);
    for (unsigned block = 0; block < blocks; ++block) {
        for (unsigned thread = 0; thread < threads; ++thread) {
            odc::add<Gradient, Accumulator, Reduce>(additions, block, blocks, thread, threads);
        }
    }
}

struct Atomics {
    using Number = unsigned long long;
    static void add(Number *to, Number value) {
        std::atomic_ref<Number>(*to).fetch_add(value, std::memory_order_relaxed);
    }
    static void add_of_warp(Number *to, unsigned count) { add(to, count); }
    static void raise(Number *to, Number value) {
        std::atomic_ref<Number> largest(*to);
        Number seen = largest.load(std::memory_order_relaxed);
        while (seen < value && !largest.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
        }
    }
    static void set(unsigned *word, unsigned bits) {
        std::atomic_ref<unsigned>(*word).fetch_or(bits, std::memory_order_relaxed);
    }
};

template <class Gradient>
void run_exact_add(const void *parameter, unsigned blocks, unsigned threads) {
    const auto &additions = *static_cast<const odc::ExactAddends *>(parameter);
    for (unsigned block = 0; block < blocks; ++block) {
        for (unsigned thread = 0; thread < threads; ++thread) {
            odc::add_exactly<Gradient, Atomics>(additions, block, blocks, thread, threads);
        }
    }
}

// The last blocks first, whose writes would be where the others have not read yet if a wave were too long.
void run_conversion(const void *parameter, unsigned blocks, unsigned threads) {
    const auto &wave = *static_cast<const odc::ExactWave *>(parameter);
    struct Thread {
        float values[odc::kConvertEach];
        double largest = 0;
    };
    for (unsigned block = blocks; block-- > 0;) {
        std::vector<Thread> of(threads);
        for (unsigned long long tile = block; tile < odc::wave_tiles(wave, threads); tile += blocks) {
            for (unsigned i = 0; i < threads; ++i) {
                of[i].largest = odc::read_tile(wave, tile, i, threads, of[i].values, of[i].largest);
            }
            for (unsigned i = 0; i < threads; ++i) {  // after the barrier
                odc::write_tile(wave, tile, i, threads, of[i].values);
            }
        }
        for (const Thread &one : of) {
            odc::note_largest<Atomics>(wave, one.largest);
        }
    }
}

struct Kernel {
    std::string_view name;
    void (*run)(const void *parameter, unsigned blocks, unsigned threads);
};
constexpr Kernel kKernels[] = {
    {"odc_add_f32", run_add<float, float>},
    {"odc_add_f64", run_add<double, double>},
    {"odc_add_bf16", run_add<odc::Bfloat16, float>},
    {"odc_add_f16", run_add<odc::Float16, float>},
    {"odc_exact_add_f32", run_exact_add<float>},
    {"odc_exact_add_bf16", run_exact_add<odc::Bfloat16>},
    {"odc_exact_add_f16", run_exact_add<odc::Float16>},
    {"odc_exact_add_sums", run_exact_add<long long>},
    {"odc_exact_to_f32", run_conversion},
    {"odc_plain_add_f32", run_add<float, float, PlainAdditions>},
    {"odc_plain_add_f64", run_add<double, double, PlainAdditions>},
    {"odc_plain_add_bf16", run_add<odc::Bfloat16, float, PlainAdditions>},
    {"odc_plain_add_f16", run_add<odc::Float16, float, PlainAdditions>},
};

}  // namespace

bool is_plain(const char *name) { return std::string_view(name).starts_with(kPlain); }

bool has_kernel(const std::string &name) {
    return std::any_of(std::begin(kKernels), std::end(kKernels), [&](const Kernel &one) { return one.name == name; });
}

bool run_kernel(const char *name, unsigned grid_x, unsigned block_x, void **parameters) {
    for (const Kernel &kernel : kKernels) {
        if (kernel.name == name) {
            kernel.run(parameters[0], grid_x, block_x);
            return true;
        }
    }
    return false;
}

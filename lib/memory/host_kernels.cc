// SPDX-License-Identifier: Apache-2.0
#include "memory/host_kernels.h"

#include <odc/odc.h>

#include <cstring>
#include <iterator>

#include "base/element_type.h"

// Highway compiles the part below once per instruction set; the dispatch at the end picks one at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "memory/host_kernels.cc"
#include <hwy/foreach_target.h>

#include "memory/kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace odc {
namespace HWY_NAMESPACE {

constexpr size_t kCopyPages = 4;

template <Walk kWalk>
void copy_past_cache(void *to, const void *from, size_t bytes) {
    const hn::ScalableTag<uint8_t> d;
    const size_t lanes = hn::Lanes(d);
    const size_t step_bytes = HWY_MAX(2 * lanes, 2 * kLineBytes);
    auto *out = static_cast<uint8_t *>(to);
    const auto *in = static_cast<const uint8_t *>(from);
    // Streams whole lines only: a line written in parts costs two memory writes.
    const size_t unit = HWY_MAX(lanes, kLineBytes);
    const size_t head = (unit - reinterpret_cast<uintptr_t>(out) % unit) % unit;
    if (bytes < head + step_bytes) {
        std::memcpy(to, from, bytes);
        return;
    }
    std::memcpy(out, in, head);
    const auto step = [&](size_t i) HWY_ATTR {
        if constexpr (kWalk == Walk::Prefetch) {
            prefetch(in + i, step_bytes);
        }
        for (size_t k = 0; k < step_bytes; k += lanes) {
            hn::Stream(hn::LoadU(d, in + i + k), d, out + i + k);
        }
    };
    size_t i = head;
    if constexpr (kWalk == Walk::Pages) {
        for (; i + kCopyPages * kPageBytes <= bytes; i += kCopyPages * kPageBytes) {
            for (size_t j = 0; j < kPageBytes; j += step_bytes) {
                for (size_t page = 0; page < kCopyPages; ++page) {
                    step(i + page * kPageBytes + j);
                }
            }
        }
    }
    for (; i + step_bytes <= bytes; i += step_bytes) {
        step(i);
    }
    hwy::FlushStream();
    std::memcpy(out + i, in + i, bytes - i);
}

void copy_by(CopyLoop loop, void *to, const void *from, size_t bytes) {
    switch (loop) {
        case CopyLoop::Memcpy: std::memcpy(to, from, bytes); break;
        case CopyLoop::Stream: copy_past_cache<Walk::Line>(to, from, bytes); break;
        case CopyLoop::StreamPrefetch: copy_past_cache<Walk::Prefetch>(to, from, bytes); break;
        case CopyLoop::StreamPages: copy_past_cache<Walk::Pages>(to, from, bytes); break;
    }
}

template <Walk kWalk, Sum kSum, class Accumulator, class Gradient>
void apply(Accumulator *HWY_RESTRICT sums, const Gradient *HWY_RESTRICT from, size_t count) {
    const hn::ScalableTag<Accumulator> d;
    const size_t lanes = hn::Lanes(d);
    const auto one = [&](size_t i) HWY_ATTR {
        auto v = widen(d, from + i);
        if constexpr (kSum == Sum::Add) {
            v = hn::Add(hn::LoadU(d, sums + i), v);
        }
        hn::StoreU(v, d, sums + i);
    };
    const size_t i = for_each_vector<kWalk>(sums, from, count, lanes, one);
    if (i < count) {
        // The tail is processed in padded copies, so that no lane outside the buffers is touched.
        Gradient tail_from[HWY_MAX_BYTES / sizeof(Accumulator)] = {};
        Accumulator tail_sums[HWY_MAX_BYTES / sizeof(Accumulator)] = {};
        const size_t rest = count - i;
        std::memcpy(tail_from, from + i, rest * sizeof(Gradient));
        std::memcpy(tail_sums, sums + i, rest * sizeof(Accumulator));
        auto v = widen(d, tail_from);
        if constexpr (kSum == Sum::Add) {
            v = hn::Add(hn::LoadU(d, tail_sums), v);
        }
        hn::StoreU(v, d, tail_sums);
        std::memcpy(sums + i, tail_sums, rest * sizeof(Accumulator));
    }
}

template <Sum kSum, class Accumulator, class Gradient>
void apply_by(AddLoop loop, Accumulator *sums, const Gradient *from, size_t count) {
    switch (loop) {
        case AddLoop::Line: apply<Walk::Line, kSum>(sums, from, count); break;
        case AddLoop::Prefetch: apply<Walk::Prefetch, kSum>(sums, from, count); break;
        case AddLoop::Pages: apply<Walk::Pages, kSum>(sums, from, count); break;
    }
}

template <class Accumulator, class Gradient>
void apply_either(AddLoop loop, Sum sum, void *accumulator, const void *gradient, size_t count) {
    auto *sums = static_cast<Accumulator *>(accumulator);
    const auto *from = static_cast<const Gradient *>(gradient);
    if (sum == Sum::Store) {
        apply_by<Sum::Store>(loop, sums, from, count);
    } else {
        apply_by<Sum::Add>(loop, sums, from, count);
    }
}

void add_by(AddLoop loop, Sum sum, int32_t gradient_type, void *accumulator, const void *gradient, size_t count) {
    switch (gradient_type) {
        case ODC_F32: apply_either<float, float>(loop, sum, accumulator, gradient, count); break;
        case ODC_F64: apply_either<double, double>(loop, sum, accumulator, gradient, count); break;
        case ODC_BF16: apply_either<float, hwy::bfloat16_t>(loop, sum, accumulator, gradient, count); break;
        case ODC_F16: apply_either<float, hwy::float16_t>(loop, sum, accumulator, gradient, count); break;
        default: break;  // checked when the shard was registered
    }
}

const char *target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace odc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace odc {

HWY_EXPORT(copy_by);
HWY_EXPORT(add_by);
HWY_EXPORT(target_name);

namespace {

// A smaller copy is likely to be read again from the cache; measured with odc bench gather.
constexpr size_t kPastCacheBytes = size_t{1} << 20;
constexpr size_t kSampleBytes = size_t{256} << 10;  // of a copy, per turn of a loop

constinit LoopChoice copy_choice(std::size(kCopyLoops));
constinit LoopChoice add_f32(std::size(kAddLoops));
constinit LoopChoice add_f64(std::size(kAddLoops));
constinit LoopChoice add_bf16(std::size(kAddLoops));
constinit LoopChoice add_f16(std::size(kAddLoops));

LoopChoice &add_choice(int32_t gradient_type) {
    switch (gradient_type) {
        case ODC_F64: return add_f64;
        case ODC_BF16: return add_bf16;
        case ODC_F16: return add_f16;
        default: return add_f32;
    }
}

// "; copy by stream (GB/s: memcpy 8.4, stream 14.1, ...)"; "" if no loop is chosen yet.
template <class Loops>
std::string figures(const char *what, const Loops &loops, const LoopChoice &choice) {
    if (choice.chosen() < 0) {
        return "";
    }
    std::string text = formatted("; {} by {} (GB/s", what, loop_name(loops[static_cast<size_t>(choice.chosen())]));
    const char *separator = ": ";
    for (size_t i = 0; i < std::size(loops); ++i) {
        text += formatted("{}{} {:.1f}", separator, loop_name(loops[i]), choice.speed(static_cast<int>(i)) / 1e3);
        separator = ", ";
    }
    return text + ")";
}

}  // namespace

const char *loop_name(CopyLoop loop) {
    switch (loop) {
        case CopyLoop::Memcpy: return "memcpy";
        case CopyLoop::Stream: return "stream";
        case CopyLoop::StreamPrefetch: return "stream+prefetch";
        case CopyLoop::StreamPages: return "stream 4 pages";
    }
    return "";
}

const char *loop_name(AddLoop loop) {
    switch (loop) {
        case AddLoop::Line: return "line";
        case AddLoop::Prefetch: return "prefetch";
        case AddLoop::Pages: return "2 pages";
    }
    return "";
}

void copy_bytes_by(CopyLoop loop, void *to, const void *from, size_t bytes) {
    HWY_DYNAMIC_DISPATCH(copy_by)(loop, to, from, bytes);
}

void copy_bytes(void *to, const void *from, size_t bytes) {
    if (bytes < kPastCacheBytes) {
        std::memcpy(to, from, bytes);
        return;
    }
    auto *out = static_cast<std::byte *>(to);
    const auto *in = static_cast<const std::byte *>(from);
    size_t done = 0;
    while (bytes - done >= kSampleBytes && copy_choice.chosen() < 0) {
        const bool counts = copy_choice.run(kSampleBytes, [&](int loop) {
            copy_bytes_by(kCopyLoops[static_cast<size_t>(loop)], out + done, in + done, kSampleBytes);
        });
        done += kSampleBytes;
        if (!counts) {  // the rest is likely to have page faults, too, beside which the loop does not matter
            std::memcpy(out + done, in + done, bytes - done);
            return;
        }
    }
    const int chosen = copy_choice.chosen();
    copy_bytes_by(chosen < 0 ? CopyLoop::Stream : kCopyLoops[static_cast<size_t>(chosen)], out + done, in + done,
                  bytes - done);
}

void add_elements_by(AddLoop loop, Sum sum, int32_t gradient_type, void *accumulator, const void *gradient,
                     size_t count) {
    HWY_DYNAMIC_DISPATCH(add_by)(loop, sum, gradient_type, accumulator, gradient, count);
}

void add_elements(Sum sum, int32_t gradient_type, void *accumulator, const void *gradient, size_t count,
                  uint64_t slice_numel) {
    run_add_loop(add_choice(gradient_type), sum, count, count * element_size(gradient_type),
                 slice_numel * element_size(accumulator_type(gradient_type)),
                 [&](AddLoop loop) { add_elements_by(loop, sum, gradient_type, accumulator, gradient, count); });
}

std::string add_loop_figures(const char *what, const LoopChoice &choice) { return figures(what, kAddLoops, choice); }

std::string loop_figures() {
    return figures("copy", kCopyLoops, copy_choice) + add_loop_figures("add f32", add_f32) +
           add_loop_figures("add f64", add_f64) + add_loop_figures("add bf16", add_bf16) +
           add_loop_figures("add f16", add_f16);
}

const char *vector_target() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

}  // namespace odc
#endif

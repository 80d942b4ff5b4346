// SPDX-License-Identifier: Apache-2.0
#include "transport/cuda/add_kernel.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "base/element_type.h"
#include "base/settings.h"

namespace odc {

namespace {

// Four blocks fit a multiprocessor, and nothing else beside them. On an H200 one block for two multiprocessors adds as fast (64
// blocks: 296 G elements of f32 a second and 322 G of bf16, 528 blocks: 293 G and 319 G), and the other half of the
// multiprocessors stays with the backward that runs meanwhile.
constexpr unsigned kMultiprocessorsPerBlock = 2;
// 450 GB/s times 2 µs of a link are 0.9 MB in flight, which 28 blocks have.
constexpr unsigned kBlocksBetweenGpus = 32;
// As many as fit: sums become f32 when additions have ended, and the owner waits for it.
constexpr unsigned kConvertingBlocks = 2;  // to a multiprocessor

}  // namespace

AddKernel::AddKernel(const CudaDevice &device)
    : device_(device), limit_(static_cast<unsigned>(setting_number(Setting::kAddBlocks))) {}

unsigned AddKernel::most_blocks(AddScope scope) const {
    if (limit_ != 0) {
        return limit_;
    }
    const unsigned local = std::max(1U, device_.multiprocessors() / kMultiprocessorsPerBlock);
    return scope == AddScope::OwnGpu ? local : std::min(local, kBlocksBetweenGpus);
}

ExactTotals *totals_of(const RemoteSlice &slice) {
    return reinterpret_cast<ExactTotals *>(slice.accumulator + slice.numel * sizeof(int64_t));
}

namespace {

void put(Addend &to, const SliceAddend &one) {
    const size_t size = sum_size(one.to.gradient_type, one.to.summation);
    to = {one.from, one.to.accumulator + one.first * size, one.count};
}

void put(ExactAddend &to, const SliceAddend &one) {
    put(static_cast<Addend &>(to), one);
    to.totals = totals_of(one.to);
    to.additions = one.additions;
}

}  // namespace

// Allocates nothing, as what has been enqueued before could not be taken back.
template <class Additions>
void AddKernel::launch(cuda::Function kernel, Additions additions, const std::vector<SliceAddend> &addends,
                       AddScope scope, cuda::Stream stream) const {
    const RemoteSlice &slice = addends.front().to;
    const bool wide = sum_size(slice.gradient_type, slice.summation) == sizeof(double);
    constexpr size_t kMost = std::extent_v<decltype(additions.addends)>;
    for (size_t begin = 0; begin < addends.size(); begin += kMost) {
        additions.count = static_cast<unsigned>(std::min(kMost, addends.size() - begin));
        unsigned long long tiles = 0;
        for (unsigned i = 0; i < additions.count; ++i) {
            put(additions.addends[i], addends[begin + i]);
            const Addend &one = additions.addends[i];
            tiles += wide ? add_tiles<double>(one) : add_tiles<float>(one);
        }
        void *parameters[] = {&additions};
        device_.check(cuda::driver().cuLaunchKernel(
                          kernel, static_cast<unsigned>(std::min<unsigned long long>(tiles, most_blocks(scope))), 1, 1,
                          kAddThreads, 1, 1, 0, stream, parameters, nullptr),
                      "cuLaunchKernel of an addition");
    }
}

void AddKernel::enqueue(const std::vector<SliceAddend> &addends, AddScope scope, cuda::Stream stream) const {
    if (addends.empty()) {
        return;
    }
    const RemoteSlice &to = addends.front().to;
    const auto type = static_cast<size_t>(to.gradient_type);
    if (to.summation == ODC_SUM_EXACT) {
        ExactAddends additions{};
        additions.scale = std::ldexp(1.0, kExactBits - to.exponent);
        launch(device_.exact_kernels().adders[type], additions, addends, scope, stream);
    } else {
        launch(device_.adder(to.gradient_type), Addends{}, addends, scope, stream);
    }
}

void AddKernel::enqueue_sums(const std::vector<SliceAddend> &addends, cuda::Stream stream) const {
    if (addends.empty()) {
        return;
    }
    const RemoteSlice &to = addends.front().to;
    if (to.summation == ODC_SUM_EXACT) {
        launch(device_.exact_kernels().sums_adder, ExactAddends{}, addends, AddScope::OwnGpu, stream);
    } else {
        launch(device_.adder(accumulator_type(to.gradient_type)), Addends{}, addends, AddScope::OwnGpu, stream);
    }
}

void AddKernel::enqueue_conversion(const RemoteSlice &slice, cuda::Stream stream) const {
    ExactWave wave = before_waves(reinterpret_cast<long long *>(slice.accumulator), totals_of(slice),
                                  std::ldexp(1.0, slice.exponent - kExactBits));
    const unsigned most = kConvertingBlocks * device_.multiprocessors();
    for (wave = next_wave(wave, slice.numel); wave.begin < wave.end; wave = next_wave(wave, slice.numel)) {
        const unsigned long long tiles = wave_tiles(wave, kAddThreads);
        void *parameters[] = {&wave};
        device_.check(cuda::driver().cuLaunchKernel(device_.exact_kernels().converter,
                                                    static_cast<unsigned>(std::min<unsigned long long>(tiles, most)), 1,
                                                    1, kAddThreads, 1, 1, 0, stream, parameters, nullptr),
                      "cuLaunchKernel of the conversion of exact sums");
    }
}

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
#include "transport/cuda/add_kernel.h"

#include <algorithm>

#include "base/settings.h"

namespace odc {

namespace {

// Four blocks fit a multiprocessor, and nothing else beside them. On an H200 half a block each adds as fast (64 blocks: 296 G
// elements of f32 a second and 322 G of bf16, 528 blocks: 293 G and 319 G), and the other half of the multiprocessors stays with
// the backward that runs meanwhile.
constexpr unsigned kMultiprocessorsPerBlock = 2;
// 450 GB/s times 2 µs of a link are 0.9 MB in flight, which 28 blocks have.
constexpr unsigned kBlocksBetweenGpus = 32;

}  // namespace

AddKernel::AddKernel(const CudaDevice &device)
    : device_(device), limit_(static_cast<unsigned>(setting_number(Setting::kAddBlocks))) {}

unsigned AddKernel::most_blocks(AddReach reach) const {
    if (limit_ != 0) {
        return limit_;
    }
    const unsigned local = std::max(1U, device_.multiprocessors() / kMultiprocessorsPerBlock);
    return reach == AddReach::OwnGpu ? local : std::min(local, kBlocksBetweenGpus);
}

void AddKernel::enqueue(int32_t gradient_type, const std::vector<Addend> &addends, AddReach reach,
                        cuda::Stream stream) const {
    for (size_t begin = 0; begin < addends.size(); begin += kMostAddends) {
        Addends additions{};
        additions.count = static_cast<unsigned>(std::min<size_t>(kMostAddends, addends.size() - begin));
        std::copy_n(addends.begin() + static_cast<std::ptrdiff_t>(begin), additions.count, additions.addends);
        unsigned long long tiles = 0;
        for (unsigned i = 0; i < additions.count; ++i) {
            const Addend &one = additions.addends[i];
            tiles += gradient_type == ODC_F64 ? add_tiles<double>(one) : add_tiles<float>(one);
        }
        void *parameters[] = {&additions};
        device_.check(cuda::driver().cuLaunchKernel(
                          device_.adder(gradient_type),
                          static_cast<unsigned>(std::min<unsigned long long>(tiles, most_blocks(reach))), 1, 1,
                          kAddThreads, 1, 1, 0, stream, parameters, nullptr),
                      "cuLaunchKernel of an addition");
    }
}

}  // namespace odc

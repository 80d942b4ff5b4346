// SPDX-License-Identifier: Apache-2.0
#include "transport/cuda/add_kernel.h"

#include <algorithm>

#include "base/settings.h"

namespace odc {

namespace {

constexpr unsigned kBlocksPerMultiprocessor = 4;  // as many as fit

unsigned most_blocks(const CudaDevice &device) {
    const auto limit = static_cast<unsigned>(setting_number(Setting::kAddBlocks));
    return limit != 0 ? limit : kBlocksPerMultiprocessor * device.multiprocessors();
}

}  // namespace

AddKernel::AddKernel(const CudaDevice &device) : device_(device), most_blocks_(most_blocks(device)) {}

void AddKernel::enqueue(int32_t gradient_type, const std::vector<Addend> &addends, cuda::Stream stream) const {
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
        device_.check(
            cuda::driver().cuLaunchKernel(device_.adder(gradient_type),
                                          static_cast<unsigned>(std::min<unsigned long long>(tiles, most_blocks_)), 1,
                                          1, kAddThreads, 1, 1, 0, stream, parameters, nullptr),
            "cuLaunchKernel of an addition");
    }
}

}  // namespace odc

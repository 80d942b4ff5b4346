// SPDX-License-Identifier: Apache-2.0
// Launches the kernels that add gradients to sums in GPU memory.
#pragma once

#include "transport/cuda/device.h"
#include "transport/cuda/kernels/add.h"

#include <cstdint>
#include <vector>

namespace odc {

enum class AddReach {
    OwnGpu,       // all sums are in this GPU's memory, or in host memory
    SeveralGpus,  // some are in another one's
};

// Thread-safe.
class AddKernel {
public:
    explicit AddKernel(const CudaDevice &device);

    // Adds in the order of the addends. The caller has a CudaDevice::Scope.
    void enqueue(int32_t gradient_type, const std::vector<Addend> &addends, AddReach reach, cuda::Stream stream) const;

private:
    unsigned most_blocks(AddReach reach) const;

    const CudaDevice &device_;
    unsigned limit_;  // 0: none was given
};

}  // namespace odc

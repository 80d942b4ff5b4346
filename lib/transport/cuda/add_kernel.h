// SPDX-License-Identifier: Apache-2.0
// Launches the kernels that add gradients to sums in GPU memory.
#pragma once

#include "transport/cuda/device.h"
#include "transport/cuda/kernels/add.h"

#include <cstdint>
#include <vector>

namespace odc {

// Thread-safe.
class AddKernel {
public:
    explicit AddKernel(const CudaDevice &device);

    // Adds in the order of the addends. The caller has a CudaDevice::Scope.
    void enqueue(int32_t gradient_type, const std::vector<Addend> &addends, cuda::Stream stream) const;

private:
    const CudaDevice &device_;
    unsigned most_blocks_;
};

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// Copies that a stream makes from or to this rank's GPU.
#pragma once

#include "transport/cuda/device.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace odc {

struct Copy {
    const std::byte *from;
    std::byte *to;
    uint64_t bytes;
    bool other_gpu;  // from or to it
};

class Copier {
public:
    explicit Copier(const CudaDevice &device);

    // Enqueues the copies. Between GPUs with copy engines rather than multiprocessors where the driver can, so that they proceed
    // while a kernel fills the GPU. The caller has a CudaDevice::Scope.
    void enqueue(const std::vector<Copy> &copies, cuda::Stream stream) const;

private:
    void enqueue_one(const Copy &copy, cuda::Stream stream) const;
    void enqueue_batch(const std::vector<Copy> &copies, cuda::Stream stream) const;

    const CudaDevice &device_;
    const bool batches_;
};

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// Host memory that a GPU's streams read and write: its pages are registered with the driver.
#pragma once

#include "transport/cuda/device.h"

#include <cstdint>

namespace odc {

// Host memory of this process that streams read and write without the host.
class PinnedMemory {
public:
    PinnedMemory(const CudaDevice &device, uint64_t bytes);
    ~PinnedMemory();
    PinnedMemory(const PinnedMemory &) = delete;
    PinnedMemory &operator=(const PinnedMemory &) = delete;

    std::byte *start() const { return start_; }
    // As streams see it.
    cuda::Address address() const { return address_; }

private:
    const CudaDevice &device_;
    uint64_t bytes_;
    std::byte *start_;
    cuda::Address address_ = 0;
};

uint64_t page_bytes();
// Pages of memory that processes share; those of one process count together, so that each can pin and unpin them.
// Returns their address for streams.
cuda::Address pin_pages(const CudaDevice &device, std::byte *start, uint64_t bytes);
void unpin_pages(const CudaDevice &device, std::byte *start);
// Pinned memory as kernels see it.
std::byte *as_seen_by(const CudaDevice &device, std::byte *pinned);

}  // namespace odc

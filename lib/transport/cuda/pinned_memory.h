// SPDX-License-Identifier: Apache-2.0
// Host memory that streams read and write: its pages are registered with the driver.
#pragma once

#include "transport/cuda/device.h"

#include <cstdint>

namespace odc {

// Pinned memory of this process.
class PinnedMemory {
public:
    PinnedMemory(const CudaDevice &device, uint64_t bytes);
    ~PinnedMemory();
    PinnedMemory(const PinnedMemory &) = delete;
    PinnedMemory &operator=(const PinnedMemory &) = delete;

    std::byte *start() const { return start_; }
    // Its address for streams.
    cuda::Address address() const { return address_; }

private:
    const CudaDevice &device_;
    uint64_t bytes_;
    std::byte *start_;
    cuda::Address address_ = 0;
};

uint64_t page_bytes();
// Pins pages of shared memory and returns their address for streams. Pins are counted per process, so that several contexts may
// pin the same pages.
cuda::Address pin_pages(const CudaDevice &device, std::byte *start, uint64_t bytes);
void unpin_pages(const CudaDevice &device, std::byte *start);
// The address of pinned memory for kernels.
std::byte *device_pointer(const CudaDevice &device, std::byte *pinned);

}  // namespace odc

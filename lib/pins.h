// SPDX-License-Identifier: Apache-2.0
// Words of host memory that a GPU's streams write: the pages that they lie in are registered with the driver.
#pragma once

#include "cuda_device.h"

#include <cstdint>
#include <map>

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

// Pages of memory that processes share; those of one process count together, so that each can pin and unpin them.
void pin_pages(const CudaDevice &device, std::byte *start, uint64_t bytes);
void unpin_pages(const CudaDevice &device, std::byte *start);
// Pinned memory as kernels see it.
std::byte *as_seen_by(const CudaDevice &device, std::byte *pinned);

// Calls must not overlap.
class Pins {
public:
    explicit Pins(const CudaDevice &device) : device_(device) {}
    ~Pins();
    Pins(const Pins &) = delete;
    Pins &operator=(const Pins &) = delete;

    // The word's address for streams. Its page stays registered until `unpin` has been called as often.
    cuda::Address pin(const void *word);
    void unpin(const void *word);

private:
    struct Page {
        cuda::Address address;
        uint64_t users;
    };
    const CudaDevice &device_;
    std::map<uintptr_t, Page> pages_;
};

}  // namespace odc

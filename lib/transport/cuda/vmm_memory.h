// SPDX-License-Identifier: Apache-2.0
// GPU memory that several processes map: a region of one allocation, which is handed over as a file descriptor. It lives as
// long as anybody maps it, so a region of a dead process stays what it was.
#pragma once

#include "base/fd.h"
#include "transport/cuda/device.h"

#include <cstdint>

namespace odc {

class CudaMemory {
public:
    // Allocated, mapped, and zero. Throws ODC_ERROR_NO_MEMORY with what is needed and what there is; at the deadline, for the
    // GPU may be busy, ODC_ERROR_DEVICE. What is still being cleared then is freed later (CudaDevice::park).
    CudaMemory(const CudaDevice &device, uint64_t bytes, const Deadline &deadline);
    // Another process's, of `bytes` as this says there.
    CudaMemory(const CudaDevice &device, const Fd &handle, uint64_t bytes);
    // Nothing may be on its way to or from it on this process's streams.
    ~CudaMemory();
    CudaMemory(const CudaMemory &) = delete;
    CudaMemory &operator=(const CudaMemory &) = delete;

    // As this process sees it.
    std::byte *start() const { return reinterpret_cast<std::byte *>(address_); }
    uint64_t bytes() const { return bytes_; }
    Fd handle() const;

private:
    void create();
    void map();
    explicit CudaMemory(const CudaDevice &device) : device_(device), bytes_(0) {}  // nothing yet
    void clear(const Deadline &deadline);
    void undo();

    const CudaDevice &device_;
    uint64_t bytes_;  // whole granules
    cuda::Memory memory_ = 0;
    cuda::Address address_ = 0;
    bool mapped_ = false;
};

}  // namespace odc

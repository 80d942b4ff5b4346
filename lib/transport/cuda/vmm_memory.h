// SPDX-License-Identifier: Apache-2.0
// GPU memory that several processes map (CUDA's virtual memory management), passed on as a file descriptor. It lives while any
// process maps it, so it outlives its owner's death.
#pragma once

#include "base/fd.h"
#include "transport/cuda/device.h"

#include <cstdint>

namespace odc {

class CudaMemory {
public:
    // Allocates, maps and zeroes. Throws ODC_ERROR_NO_MEMORY with the needed and the free bytes; ODC_ERROR_DEVICE at the
    // deadline, if the GPU is busy. Memory that is still being zeroed then is freed later (CudaDevice::park).
    CudaMemory(const CudaDevice &device, uint64_t bytes, const Deadline &deadline);
    // Maps another process's memory; `bytes` as its bytes() returns.
    CudaMemory(const CudaDevice &device, const Fd &handle, uint64_t bytes);
    // This process's streams must be done with it.
    ~CudaMemory();
    CudaMemory(const CudaMemory &) = delete;
    CudaMemory &operator=(const CudaMemory &) = delete;

    // Its address in this process.
    std::byte *start() const { return reinterpret_cast<std::byte *>(address_); }
    uint64_t bytes() const { return bytes_; }
    Fd handle() const;

private:
    void create();
    void map();
    explicit CudaMemory(const CudaDevice &device) : device_(device), bytes_(0) {}  // empty
    void clear(const Deadline &deadline);
    void undo();

    const CudaDevice &device_;
    uint64_t bytes_;  // whole granules
    cuda::Memory memory_ = 0;
    cuda::Address address_ = 0;
    bool mapped_ = false;
};

}  // namespace odc

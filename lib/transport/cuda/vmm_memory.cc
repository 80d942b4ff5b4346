// SPDX-License-Identifier: Apache-2.0
#include "transport/cuda/vmm_memory.h"

#include <memory>
#include <utility>

namespace odc {

using cuda::driver;
using cuda::Result;

namespace {

cuda::AllocationProperties properties_on(const CudaDevice &device) {
    cuda::AllocationProperties properties{};
    properties.type = cuda::AllocationType::Pinned;
    properties.handle_types = cuda::HandleType::PosixFileDescriptor;
    properties.location = {cuda::LocationType::Gpu, device.ordinal()};
    properties.gpu_direct_rdma_capable = device.has_gpu_direct_rdma() ? 1 : 0;
    return properties;
}

uint64_t whole_granules(const CudaDevice &device, uint64_t bytes) {
    const cuda::AllocationProperties properties = properties_on(device);
    size_t granule = 0;
    device.check(driver().cuMemGetAllocationGranularity(&granule, &properties, cuda::Granularity::Minimum),
                 "cuMemGetAllocationGranularity");
    return (bytes + granule - 1) / granule * granule;
}

}  // namespace

CudaMemory::CudaMemory(const CudaDevice &device, uint64_t bytes, const Deadline &deadline)
    : device_(device), bytes_(0) {
    const bool is_free = device_.free_parked();
    const CudaDevice::Scope scope(device_);
    if (!is_free) {  // parked memory may be needed, and the clearing below waits for the same stream anyway
        device_.await_own_stream("the clearing of an interrupted registration's memory", deadline);
        device_.free_parked();
    }
    bytes_ = whole_granules(device_, bytes);
    try {
        create();
        map();
        clear(deadline);
    } catch (...) {
        undo();
        throw;
    }
}

CudaMemory::CudaMemory(const CudaDevice &device, const Fd &handle, uint64_t bytes) : device_(device), bytes_(bytes) {
    const CudaDevice::Scope scope(device_);
    try {
        device_.check(driver().cuMemImportFromShareableHandle(
                          &memory_, reinterpret_cast<void *>(static_cast<intptr_t>(handle.get())),
                          cuda::HandleType::PosixFileDescriptor),
                      "cuMemImportFromShareableHandle");
        map();
    } catch (...) {
        undo();
        throw;
    }
}

CudaMemory::~CudaMemory() {
    const CudaDevice::Scope scope(device_);
    undo();
}

void CudaMemory::create() {
    const cuda::AllocationProperties properties = properties_on(device_);
    const Result result = driver().cuMemCreate(&memory_, bytes_, &properties, 0);
    if (result == Result::Success) {
        return;
    }
    size_t free = 0;
    size_t total = 0;
    device_.check(driver().cuMemGetInfo(&free, &total), "cuMemGetInfo");
    if (result == Result::OutOfMemory && bytes_ <= free) {
        fail(ODC_ERROR_NO_MEMORY,
             "cuMemCreate has no memory for {} bytes in that of {}, though {} of {} are free: this process may have "
             "too many descriptors (ulimit -n) or mappings",
             bytes_, device_.name(), free, total);
    }
    if (result == Result::OutOfMemory || bytes_ > total) {  // for more than the GPU has, the result may be InvalidValue
        fail(ODC_ERROR_NO_MEMORY,
             "slices in the memory of {} need {} bytes, but only {} of {} are free; shard over more ranks, use a "
             "smaller type, or let the program keep less there",
             device_.name(), bytes_, free, total);
    }
    device_.check(result, "cuMemCreate");
}

void CudaMemory::map() {
    const std::string what = formatted("mapping {} bytes of GPU memory", bytes_);
    device_.check_memory(driver().cuMemAddressReserve(&address_, bytes_, 0, 0, 0), "cuMemAddressReserve", what);
    device_.check_memory(driver().cuMemMap(address_, bytes_, 0, memory_, 0), "cuMemMap", what);
    mapped_ = true;
    const cuda::AccessDescription access{{cuda::LocationType::Gpu, device_.ordinal()}, cuda::Access::ReadWrite};
    device_.check_memory(driver().cuMemSetAccess(address_, bytes_, &access, 1), "cuMemSetAccess", what);
}

void CudaMemory::clear(const Deadline &deadline) {
    const std::shared_ptr<CudaMemory> heir(new CudaMemory(device_));
    CudaDevice::Parked parked{heir};  // allocated in advance, so that parking cannot fail
    device_.check(driver().cuMemsetD8Async(address_, 0, bytes_, device_.own_stream()), "cuMemsetD8Async");
    try {
        device_.await_own_stream(formatted("the clearing of {} bytes", bytes_), deadline);
    } catch (...) {
        if (driver().cuStreamQuery(device_.own_stream()) == Result::NotReady) {
            heir->bytes_ = bytes_;
            heir->memory_ = std::exchange(memory_, 0);
            heir->address_ = std::exchange(address_, 0);
            heir->mapped_ = std::exchange(mapped_, false);
            device_.park(std::move(parked));
        }
        throw;
    }
}

void CudaMemory::undo() {
    if (mapped_) {
        driver().cuMemUnmap(address_, bytes_);
    }
    if (address_ != 0) {
        driver().cuMemAddressFree(address_, bytes_);
    }
    if (memory_ != 0) {
        driver().cuMemRelease(memory_);
    }
}

Fd CudaMemory::handle() const {
    const CudaDevice::Scope scope(device_);
    int fd = -1;
    device_.check(driver().cuMemExportToShareableHandle(&fd, memory_, cuda::HandleType::PosixFileDescriptor, 0),
                  "cuMemExportToShareableHandle");
    return Fd(fd);
}

}  // namespace odc

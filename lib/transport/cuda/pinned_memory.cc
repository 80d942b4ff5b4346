// SPDX-License-Identifier: Apache-2.0
#include "transport/cuda/pinned_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <mutex>

namespace odc {

using cuda::driver;

namespace {

cuda::Address register_host(const CudaDevice &device, void *start, uint64_t bytes) {
    const CudaDevice::Scope scope(device);
    cuda::Result result =
        driver().cuMemHostRegister(start, bytes, cuda::kHostRegisterPortable | cuda::kHostRegisterDeviceMap);
    if (result == cuda::Result::OutOfMemory) {
        fail(ODC_ERROR_NO_MEMORY,
             "there is no memory for pinning {} bytes of host memory (cuMemHostRegister on {}); the limit on locked "
             "memory may be too low, too (ulimit -l)",
             bytes, device.name());
    }
    device.check(result, "cuMemHostRegister");
    cuda::Address address = 0;
    result = driver().cuMemHostGetDevicePointer(&address, start, 0);
    if (result != cuda::Result::Success) {
        driver().cuMemHostUnregister(start);
        device.check(result, "cuMemHostGetDevicePointer");
    }
    return address;
}

}  // namespace

PinnedMemory::PinnedMemory(const CudaDevice &device, uint64_t bytes) : device_(device), bytes_(bytes) {
    void *memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        fail_errno(formatted("mmap of {} bytes", bytes_));
    }
    // A forked child does not need it, and copy-on-write after a fork() would separate it from the pages that the GPU writes.
    madvise(memory, bytes_, MADV_DONTFORK);
    start_ = static_cast<std::byte *>(memory);
    try {
        address_ = register_host(device_, start_, bytes_);
    } catch (...) {
        munmap(memory, bytes_);
        throw;
    }
}

PinnedMemory::~PinnedMemory() {
    {
        const CudaDevice::Scope scope(device_);
        driver().cuMemHostUnregister(start_);
    }
    munmap(start_, bytes_);
}

namespace {

struct PinnedPages {
    std::mutex mutex;
    std::map<std::byte *, uint64_t> users;
};

PinnedPages &pinned_pages() {
    static auto &all = *new PinnedPages;
    return all;
}

}  // namespace

uint64_t page_bytes() {
    static const auto bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    return bytes;
}

cuda::Address pin_pages(const CudaDevice &device, std::byte *start, uint64_t bytes) {
    PinnedPages &all = pinned_pages();
    const std::lock_guard lock(all.mutex);
    const cuda::Address address = all.users[start] == 0
                                      ? register_host(device, start, bytes)
                                      : reinterpret_cast<cuda::Address>(device_pointer(device, start));
    ++all.users[start];
    return address;
}

void unpin_pages(const CudaDevice &device, std::byte *start) {
    PinnedPages &all = pinned_pages();
    const std::lock_guard lock(all.mutex);
    if (--all.users[start] == 0) {
        const CudaDevice::Scope scope(device);
        driver().cuMemHostUnregister(start);
        all.users.erase(start);
    }
}

std::byte *device_pointer(const CudaDevice &device, std::byte *pinned) {
    const CudaDevice::Scope scope(device);
    cuda::Address address = 0;
    device.check(driver().cuMemHostGetDevicePointer(&address, pinned, 0), "cuMemHostGetDevicePointer");
    return reinterpret_cast<std::byte *>(address);
}

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
#include "pins.h"

#include <sys/mman.h>
#include <unistd.h>

#include <mutex>

namespace odc {

using cuda::driver;

namespace {

uintptr_t page_of(const void *word) {
    static const auto bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    return reinterpret_cast<uintptr_t>(word) / bytes * bytes;
}

cuda::Address register_host(const CudaDevice &device, void *start, uint64_t bytes) {
    const CudaDevice::Scope scope(device);
    device.check_memory(
        driver().cuMemHostRegister(start, bytes, cuda::kHostRegisterPortable | cuda::kHostRegisterDeviceMap),
        "cuMemHostRegister", say("pinning ", bytes, " bytes of host memory"));
    cuda::Address address = 0;
    const cuda::Result result = driver().cuMemHostGetDevicePointer(&address, start, 0);
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
        fail_errno(say("mmap of ", bytes_, " bytes"));
    }
    // A forked child has no use for it, and a copy on write would part it from what the GPU writes.
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

void pin_pages(const CudaDevice &device, std::byte *start, uint64_t bytes) {
    PinnedPages &all = pinned_pages();
    const std::lock_guard lock(all.mutex);
    if (all.users[start] == 0) {
        register_host(device, start, bytes);
    }
    ++all.users[start];
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

std::byte *as_seen_by(const CudaDevice &device, std::byte *pinned) {
    const CudaDevice::Scope scope(device);
    cuda::Address address = 0;
    device.check(driver().cuMemHostGetDevicePointer(&address, pinned, 0), "cuMemHostGetDevicePointer");
    return reinterpret_cast<std::byte *>(address);
}

Pins::~Pins() {
    const CudaDevice::Scope scope(device_);
    for (const auto &[page, pinned] : pages_) {
        driver().cuMemHostUnregister(reinterpret_cast<void *>(page));
    }
}

cuda::Address Pins::pin(const void *word) {
    const uintptr_t page = page_of(word);
    auto known = pages_.find(page);
    if (known == pages_.end()) {
        const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        const cuda::Address address = register_host(device_, reinterpret_cast<void *>(page), bytes);
        known = pages_.emplace(page, Page{address, 0}).first;
    }
    ++known->second.users;
    return known->second.address + (reinterpret_cast<uintptr_t>(word) - page);
}

void Pins::unpin(const void *word) {
    const auto known = pages_.find(page_of(word));
    if (known != pages_.end() && --known->second.users == 0) {
        const CudaDevice::Scope scope(device_);
        driver().cuMemHostUnregister(reinterpret_cast<void *>(known->first));
        pages_.erase(known);
    }
}

}  // namespace odc

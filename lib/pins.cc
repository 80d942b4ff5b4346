// SPDX-License-Identifier: Apache-2.0
#include "pins.h"

#include <unistd.h>

namespace odc {

using cuda::driver;

namespace {

uintptr_t page_of(const void *word) {
    static const auto bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    return reinterpret_cast<uintptr_t>(word) / bytes * bytes;
}

}  // namespace

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
        const CudaDevice::Scope scope(device_);
        auto *const start = reinterpret_cast<void *>(page);
        const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        device_.check(
            driver().cuMemHostRegister(start, bytes, cuda::kHostRegisterPortable | cuda::kHostRegisterDeviceMap),
            "cuMemHostRegister");
        cuda::Address address = 0;
        const cuda::Result result = driver().cuMemHostGetDevicePointer(&address, start, 0);
        if (result != cuda::Result::Success) {
            driver().cuMemHostUnregister(start);
            device_.check(result, "cuMemHostGetDevicePointer");
        }
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

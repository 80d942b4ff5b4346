// SPDX-License-Identifier: Apache-2.0
// Network adapters and device memory (fake_cuda.h): adapters access it in place, and the device sees their writes once they are
// flushed.
#include <mutex>
#include <vector>

#include "contexts.h"
#include "fake_cuda.h"
#include "functions.h"
#include "memory.h"

namespace {

struct Flushes {
    std::mutex mutex;
    std::vector<void (*)(void)> all;
};

Flushes &flushes() {
    static auto *one = new Flushes;
    return *one;
}

}  // namespace

namespace fake_cuda {

Result cuFlushGPUDirectRDMAWrites(FlushTarget target, FlushScope scope) {
    if (target != FlushTarget::CurrentContext || (scope != FlushScope::Owner && scope != FlushScope::AllDevices)) {
        return Result::InvalidValue;
    }
    const std::lock_guard lock(flushes().mutex);
    for (void (*flush)(void) : flushes().all) {
        flush();
    }
    return Result::Success;
}

}  // namespace fake_cuda

void *fake_cuda_for_adapters(unsigned long long address, size_t bytes, int *device) {
    const std::shared_lock lock(fake_cuda::memories().mutex);
    const auto mapping = fake_cuda::find_mapping(address);
    if (mapping == fake_cuda::memories().mappings.end()) {
        return nullptr;
    }
    const auto &[start, mapped] = *mapping;
    if (!mapped.physical->for_adapters || bytes > mapped.bytes - (address - start)) {
        return nullptr;
    }
    *device = mapped.physical->device;
    return mapped.physical->alias + (address - start);
}

int fake_cuda_is_device_memory(const void *place) {
    const std::shared_lock lock(fake_cuda::memories().mutex);
    return fake_cuda::is_device_address(reinterpret_cast<fake_cuda::Address>(place)) ? 1 : 0;
}

void fake_cuda_on_flush(void (*flush)(void)) {
    const std::lock_guard lock(flushes().mutex);
    flushes().all.push_back(flush);
}

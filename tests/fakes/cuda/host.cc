// SPDX-License-Identifier: Apache-2.0
// Registered host memory, and attributes of pointers.
#include <sys/mman.h>
#include <unistd.h>

#include <mutex>

#include "contexts.h"
#include "functions.h"
#include "memory.h"

namespace fake_cuda {

namespace {

struct Known {
    MemoryType type = MemoryType::Unknown;
    int device = -2;  // CU_DEVICE_INVALID
};

Known known_of(Address address) {
    const std::shared_lock lock(memories().mutex);
    if (const auto mapping = find_mapping(address); mapping != memories().mappings.end()) {
        return {MemoryType::Gpu, mapping->second.physical->device};
    }
    if (is_registered(address)) {
        const Context context = current_context();
        return {MemoryType::Host, context == nullptr ? 0 : context->device};
    }
    return {};
}

// Registration covers whole pages.
bool shares_pages(Address address, size_t bytes) {
    const auto page = static_cast<Address>(sysconf(_SC_PAGESIZE));
    for (const auto &[start, size] : memories().registered) {
        if (start / page <= (address + bytes - 1) / page && address / page <= (start + size - 1) / page) {
            return true;
        }
    }
    return false;
}

}  // namespace

Result cuMemHostRegister(void *start, size_t bytes, unsigned flags) {
    const auto address = reinterpret_cast<Address>(start);
    const auto page = static_cast<Address>(sysconf(_SC_PAGESIZE));
    if (start == nullptr || bytes == 0 || (flags & ~(kHostRegisterPortable | kHostRegisterDeviceMap)) != 0) {
        return Result::InvalidValue;
    }
    const std::unique_lock lock(memories().mutex);
    const Address begin = address / page * page;
    if (is_device_address(address) || msync(reinterpret_cast<void *>(begin), address + bytes - begin, MS_ASYNC) != 0) {
        return Result::InvalidValue;
    }
    if (shares_pages(address, bytes)) {
        return Result::HostMemoryAlreadyRegistered;
    }
    memories().registered[address] = bytes;
    return Result::Success;
}

Result cuMemHostUnregister(void *start) {
    const std::unique_lock lock(memories().mutex);
    return memories().registered.erase(reinterpret_cast<Address>(start)) == 1 ? Result::Success
                                                                              : kHostMemoryNotRegistered;
}

Result cuMemHostGetDevicePointer(Address *address, void *start, unsigned flags) {
    const std::shared_lock lock(memories().mutex);
    if (flags != 0 || !is_registered(reinterpret_cast<Address>(start))) {
        return Result::InvalidValue;
    }
    *address = reinterpret_cast<Address>(start);
    return Result::Success;
}

Result cuPointerGetAttributes(unsigned count, PointerAttribute *attributes, void **values, Address address) {
    if (count == 0 || attributes == nullptr || values == nullptr) {
        return Result::InvalidValue;
    }
    const Known known = known_of(address);
    for (unsigned i = 0; i < count; ++i) {
        switch (attributes[i]) {
            case PointerAttribute::MemoryType: *static_cast<MemoryType *>(values[i]) = known.type; break;
            case PointerAttribute::DeviceOrdinal: *static_cast<int *>(values[i]) = known.device; break;
            default: return Result::InvalidValue;
        }
    }
    return Result::Success;
}

}  // namespace fake_cuda

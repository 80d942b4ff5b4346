// SPDX-License-Identifier: Apache-2.0
// Device addresses: reserved, mapped, and which device may access what.
#include <sys/mman.h>

#include <algorithm>
#include <mutex>

#include "contexts.h"
#include "functions.h"
#include "memory.h"

namespace fake_cuda {

namespace {

bool are_whole(Address address, size_t bytes) {
    return bytes > 0 && address % kGranularity == 0 && bytes % kGranularity == 0;
}

// The consecutive mappings that exactly cover a range; empty: there are none.
std::vector<std::map<Address, Mapping>::iterator> row(Address address, size_t bytes) {
    std::vector<std::map<Address, Mapping>::iterator> found;
    auto &mappings = memories().mappings;
    for (Address at = address; at < address + bytes;) {
        const auto mapping = mappings.find(at);
        if (mapping == mappings.end() || mapping->second.of == Mapping::Of::Allocation ||
            mapping->second.bytes > address + bytes - at) {
            return {};
        }
        found.push_back(mapping);
        at += mapping->second.bytes;
    }
    return found;
}

bool is_free(Address address, size_t bytes) {
    const auto &mappings = memories().mappings;
    const auto next = mappings.lower_bound(address);
    return find_mapping(address) == mappings.end() && (next == mappings.end() || next->first >= address + bytes);
}

bool is_reserved(Address address, size_t bytes) {
    auto &reservations = memories().reservations;
    const auto found = find_range(reservations, address, [](size_t size) { return size; });
    return found != reservations.end() && bytes <= found->second - (address - found->first);
}

Result check_access(const AccessDescription &access, const Mapping &mapping) {
    if (access.location.type != LocationType::Gpu || !is_device(access.location.id)) {
        return Result::InvalidDevice;
    }
    if (!can_access(access.location.id, mapping.physical->device)) {
        return Result::PeerAccessUnsupported;
    }
    return context_of(access.location.id).failure;
}

}  // namespace

Address reserve(size_t bytes, size_t alignment) {
    const size_t room = bytes + alignment;
    void *all = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) {
        return 0;
    }
    const auto begin = reinterpret_cast<Address>(all);
    const Address address = (begin + alignment - 1) / alignment * alignment;
    if (address > begin) {
        munmap(all, address - begin);
    }
    munmap(reinterpret_cast<void *>(address + bytes), begin + room - (address + bytes));
    return address;
}

// `hint` is ignored.
Result cuMemAddressReserve(Address *address, size_t bytes, size_t alignment, Address /*hint*/,
                           unsigned long long flags) {
    if (bytes == 0 || bytes % kGranularity != 0 || (alignment & (alignment - 1)) != 0 || flags != 0) {
        return Result::InvalidValue;
    }
    const Address reserved = reserve(bytes, std::max(alignment, kGranularity));
    if (reserved == 0) {
        return Result::OutOfMemory;
    }
    const std::unique_lock lock(memories().mutex);
    memories().reservations[reserved] = bytes;
    *address = reserved;
    return Result::Success;
}

Result cuMemAddressFree(Address address, size_t bytes) {
    const std::unique_lock lock(memories().mutex);
    auto &reservations = memories().reservations;
    const auto found = reservations.find(address);
    if (found == reservations.end() || found->second != bytes || !is_free(address, bytes)) {
        return Result::InvalidValue;
    }
    reservations.erase(found);
    munmap(reinterpret_cast<void *>(address), bytes);
    return Result::Success;
}

Result cuMemMap(Address address, size_t bytes, size_t offset, Memory memory, unsigned long long flags) {
    const std::unique_lock lock(memories().mutex);
    const auto handle = memories().handles.find(memory);
    if (handle == memories().handles.end() || !are_whole(address, bytes) || offset != 0 || flags != 0 ||
        bytes > handle->second->bytes || !is_reserved(address, bytes) || !is_free(address, bytes)) {
        return Result::InvalidValue;
    }
    memories().mappings[address] = {bytes, handle->second, Mapping::Of::Reservation, {}};
    return Result::Success;
}

Result cuMemUnmap(Address address, size_t bytes) {
    const std::unique_lock lock(memories().mutex);
    const auto mappings = row(address, bytes);
    for (const auto &mapping : mappings) {
        memories().mappings.erase(mapping);
    }
    return mappings.empty() ? Result::InvalidValue : Result::Success;
}

Result cuMemSetAccess(Address address, size_t bytes, const AccessDescription *access, size_t count) {
    const std::unique_lock lock(memories().mutex);
    const auto mappings = row(address, bytes);
    if (mappings.empty() || count == 0) {
        return Result::InvalidValue;
    }
    for (const auto &mapping : mappings) {
        for (size_t i = 0; i < count; ++i) {
            if (const Result result = check_access(access[i], mapping->second); result != Result::Success) {
                return result;
            }
            mapping->second.access[static_cast<size_t>(access[i].location.id)] = access[i].access;
        }
    }
    return Result::Success;
}

}  // namespace fake_cuda

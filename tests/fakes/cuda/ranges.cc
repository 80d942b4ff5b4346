// SPDX-License-Identifier: Apache-2.0
// What is mapped at an address.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "memory.h"

namespace fake_cuda {

namespace {

size_t same(size_t bytes) { return bytes; }

// Whether all of it is mapped by the program.
bool is_there(Address address, size_t bytes) {
    const auto page = static_cast<Address>(sysconf(_SC_PAGESIZE));
    const Address begin = address / page * page;
    return address + bytes > address && msync(reinterpret_cast<void *>(begin), address + bytes - begin, MS_ASYNC) == 0;
}

// The first contiguous piece of a range; no bytes: it is not accessible.
template <class MayTouch>
Piece first_piece(Address address, size_t bytes, MayTouch may_touch, Pageable pageable) {
    Memories &all = memories();
    if (const auto mapping = find_mapping(address); mapping != all.mappings.end()) {
        const size_t offset = address - mapping->first;
        return {mapping->second.physical->alias + offset,
                may_touch(mapping->second) ? std::min(bytes, mapping->second.bytes - offset) : 0,
                mapping->second.physical.get()};
    }
    char *here = reinterpret_cast<char *>(address);
    if (const auto range = find_range(all.registered, address, same); range != all.registered.end()) {
        const size_t offset = address - range->first;
        return {here, std::min(bytes, range->second - offset), nullptr};
    }
    const bool host = pageable == Pageable::Allowed && !is_device_address(address) && is_there(address, bytes);
    return {here, host ? bytes : 0, nullptr};
}

template <class MayTouch>
std::vector<Piece> split(Address address, size_t bytes, MayTouch may_touch, Pageable pageable) {
    std::vector<Piece> found;
    while (bytes > 0) {
        const Piece piece = first_piece(address, bytes, may_touch, pageable);
        if (piece.bytes == 0) {
            return {};
        }
        found.push_back(piece);
        address += piece.bytes;
        bytes -= piece.bytes;
    }
    return found;
}

}  // namespace

std::map<Address, Mapping>::iterator find_mapping(Address address) {
    return find_range(memories().mappings, address, [](const Mapping &mapping) { return mapping.bytes; });
}

bool is_device_address(Address address) {
    Memories &all = memories();
    return find_range(all.reservations, address, same) != all.reservations.end() ||
           find_range(all.allocations, address, same) != all.allocations.end();
}

bool is_registered(Address address) {
    auto &registered = memories().registered;
    return find_range(registered, address, same) != registered.end();
}

std::vector<Piece> pieces(Address address, size_t bytes, Device device, Access need, Pageable pageable) {
    const auto may_touch = [device, need](const Mapping &mapping) {
        return static_cast<int>(mapping.access[static_cast<size_t>(device)]) >= static_cast<int>(need);
    };
    return split(address, bytes, may_touch, pageable);
}

std::vector<Piece> all_pieces(Address address, size_t bytes) {
    return split(
        address, bytes, [](const Mapping & /*mapping*/) { return true; }, Pageable::Allowed);
}

}  // namespace fake_cuda

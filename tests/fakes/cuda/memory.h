// SPDX-License-Identifier: Apache-2.0
// Device memory and registered host memory. Physical memory is a memfd. The host cannot access device addresses; the library's
// threads use another mapping, one per physical allocation, so that a race detector sees accesses by several mappings of one
// process as accesses to the same memory.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "devices.h"
#include "results.h"

namespace fake_cuda {

constexpr size_t kGranularity = size_t{2} << 20;

class Physical {
public:
    // Takes ownership of `fd`; `made`: counts as memory that this process allocated on the device. Throws std::bad_alloc.
    Physical(int fd, size_t bytes, Device device, bool made);
    Physical(const Physical &) = delete;
    Physical &operator=(const Physical &) = delete;
    ~Physical();

    // Sets bytes at a place of the alias.
    void fill(char *at, unsigned char value, size_t count);

    const int fd;
    const size_t bytes;
    const Device device;
    char *alias;
    bool for_adapters = false;  // requested when it was allocated

private:
    const bool made_;
};

struct Mapping {
    size_t bytes;
    std::shared_ptr<Physical> physical;
    enum class Of { Reservation, Allocation } of;
    std::array<Access, kMostDevices> access;
};

struct Memories {
    std::shared_mutex mutex;  // held for reading during accesses, so that memory in use is not unmapped
    std::map<Memory, std::shared_ptr<Physical>> handles;
    Memory next_handle = 0x1000;
    std::map<std::pair<dev_t, ino_t>, std::weak_ptr<Physical>> known;
    std::map<Address, size_t> reservations;
    std::map<Address, Mapping> mappings;
    std::map<Address, size_t> allocations;
    std::map<Address, size_t> registered;
};

Memories &memories();

// Bytes that this process allocated on the device.
std::atomic<size_t> &made_on(Device device);
// Throws std::bad_alloc. NULL: the device does not have that much left.
std::shared_ptr<Physical> make_physical(size_t bytes, Device device);
// Reserves inaccessible addresses. 0: there are none.
Address reserve(size_t bytes, size_t alignment);

// The entry whose range contains `address`, or the end.
template <class Ranges, class Bytes>
auto find_range(Ranges &ranges, Address address, Bytes bytes_of) {
    auto after = ranges.upper_bound(address);
    if (after == ranges.begin()) {
        return ranges.end();
    }
    --after;
    return address - after->first < bytes_of(after->second) ? after : ranges.end();
}

// To be called with the mutex held:

std::map<Address, Mapping>::iterator find_mapping(Address address);
// Mapped or not.
bool is_device_address(Address address);
bool is_registered(Address address);

struct Piece {
    char *at;
    size_t bytes;
    Physical *physical;  // NULL: host memory

    Device device() const { return physical != nullptr ? physical->device : -1; }
};
enum class Pageable { Allowed, Refused };
// Where this memory can be accessed on behalf of the device; empty: not accessible, or not memory.
std::vector<Piece> pieces(Address address, size_t bytes, Device device, Access need, Pageable pageable);
// The same without a check of access rights.
std::vector<Piece> all_pieces(Address address, size_t bytes);

}  // namespace fake_cuda

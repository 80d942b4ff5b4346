// SPDX-License-Identifier: Apache-2.0
// Device memory and registered host memory. Physical memory is a memfd. Device addresses cannot be touched by the host;
// the library's threads use another mapping, one for each physical allocation, so that a race detector sees what
// several mappings of it in one process do to each other.
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
    // Takes `fd`; `made`: counts as this process' use of the device. Throws std::bad_alloc.
    Physical(int fd, size_t bytes, Device device, bool made);
    Physical(const Physical &) = delete;
    Physical &operator=(const Physical &) = delete;
    ~Physical();

    const int fd;
    const size_t bytes;
    const Device device;
    char *alias;
    bool for_adapters = false;  // so asked for when it was made

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
    std::shared_mutex mutex;  // held by readers while they touch the memory, so what is unmapped is not in use
    std::map<Memory, std::shared_ptr<Physical>> handles;
    Memory next_handle = 0x1000;
    std::map<std::pair<dev_t, ino_t>, std::weak_ptr<Physical>> known;
    std::map<Address, size_t> reservations;
    std::map<Address, Mapping> mappings;
    std::map<Address, size_t> allocations;
    std::map<Address, size_t> registered;
};

Memories &memories();

// Bytes that this process made on the device.
std::atomic<size_t> &made_on(Device device);
// Throws std::bad_alloc. NULL: the device has not that much left.
std::shared_ptr<Physical> make_physical(size_t bytes, Device device);
// Addresses that nobody can touch. 0: there are none.
Address reserve(size_t bytes, size_t alignment);

// The entry whose range `address` is in, or the end.
template <class Ranges, class Bytes>
auto find_range(Ranges &ranges, Address address, Bytes bytes_of) {
    auto after = ranges.upper_bound(address);
    if (after == ranges.begin()) {
        return ranges.end();
    }
    --after;
    return address - after->first < bytes_of(after->second) ? after : ranges.end();
}

// With the mutex held:

std::map<Address, Mapping>::iterator find_mapping(Address address);
// Mapped or not.
bool is_device_address(Address address);
bool is_registered(Address address);

struct Piece {
    char *at;
    size_t bytes;
    Device device;  // -1: host memory
};
enum class Pageable { Allowed, Refused };
// Where this memory can be touched on behalf of the device; empty: it may not, or there is none.
std::vector<Piece> pieces(Address address, size_t bytes, Device device, Access need, Pageable pageable);
// The same for whoever asks.
std::vector<Piece> all_pieces(Address address, size_t bytes);

}  // namespace fake_cuda

// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <string>

#include "contexts.h"
#include "functions.h"

namespace fake_cuda {

namespace {

constexpr char kName[] = "fake CUDA device ";

#if defined(__SANITIZE_THREAD__)
constexpr bool kDetectsRaces = true;
#elif defined(__has_feature)
constexpr bool kDetectsRaces = __has_feature(thread_sanitizer);
#else
constexpr bool kDetectsRaces = false;
#endif

std::pair<dev_t, ino_t> identity(int fd) {
    struct stat status {};
    fstat(fd, &status);
    return {status.st_dev, status.st_ino};
}

// The machine's number of the device that has the memory; -1: none.
int device_number(int fd) {
    char name[64] = {};
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    const std::string begin = std::string("/memfd:") + kName;
    if (readlink(link.c_str(), name, sizeof(name) - 1) < 0 || std::string(name).rfind(begin, 0) != 0) {
        return -1;
    }
    return std::atoi(name + begin.size());
}

Memory add_handle(std::shared_ptr<Physical> physical) {
    Memories &all = memories();
    all.handles[++all.next_handle] = std::move(physical);
    return all.next_handle;
}

bool is_possible(const AllocationProperties &properties) {
    const auto handle_types = static_cast<int>(properties.handle_types);
    return properties.type == AllocationType::Pinned && properties.location.type == LocationType::Gpu &&
           (handle_types == 0 || properties.handle_types == HandleType::PosixFileDescriptor);
}

bool take(size_t bytes, Device device) {
    std::atomic<size_t> &made = made_on(device);
    size_t now = made;
    while (bytes <= device_memory() && now <= device_memory() - bytes) {
        if (made.compare_exchange_weak(now, now + bytes)) {
            return true;
        }
    }
    return false;
}

// Identifies the physical memory behind a descriptor: the same for all of its descriptors.
std::shared_ptr<Physical> import_physical(int fd, Device device) {
    Memories &all = memories();
    std::weak_ptr<Physical> &known = all.known[identity(fd)];
    std::shared_ptr<Physical> physical = known.lock();
    if (physical == nullptr) {
        struct stat status {};
        fstat(fd, &status);
        const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        if (own < 0) {
            return nullptr;
        }
        physical = std::make_shared<Physical>(own, static_cast<size_t>(status.st_size), device, false);
        known = physical;
    }
    return physical;
}

}  // namespace

Physical::Physical(int of, size_t size, Device where, bool made) : fd(of), bytes(size), device(where), made_(made) {
    void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (at == MAP_FAILED) {
        close(fd);
        throw std::bad_alloc();
    }
    alias = static_cast<char *>(at);
}

Physical::~Physical() {
    munmap(alias, bytes);
    close(fd);
    if (made_) {
        made_on(device) -= bytes;
    }
}

// Memory that was never written reads as zero already. To zero it would make its pages, which would take most of the tests' time.
// Under a race detector it is written all the same, so that the write is seen.
void Physical::fill(char *at, unsigned char value, size_t count) {
    if (value != 0 || kDetectsRaces) {
        std::memset(at, value, count);
        return;
    }
    off_t begin = at - alias;
    const off_t end = begin + static_cast<off_t>(count);
    while (begin < end) {
        const off_t written = lseek(fd, begin, SEEK_DATA);
        if (written < 0 || written >= end) {
            return;
        }
        begin = std::min(lseek(fd, written, SEEK_HOLE), end);
        std::memset(alias + written, 0, static_cast<size_t>(begin - written));
    }
}

Memories &memories() {
    static auto *one = new Memories;
    return *one;
}

std::atomic<size_t> &made_on(Device device) {
    static std::atomic<size_t> made[kMostDevices];
    return made[device];
}

std::shared_ptr<Physical> make_physical(size_t bytes, Device device) {
    if (!take(bytes, device)) {
        return nullptr;
    }
    const std::string name = kName + std::to_string(devices()[static_cast<size_t>(device)]);
    const int fd = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
        made_on(device) -= bytes;
        throw std::bad_alloc();
    }
    return std::make_shared<Physical>(fd, bytes, device, true);
}

Result cuMemGetInfo(size_t *free, size_t *total) {
    *total = device_memory();
    *free = device_memory() - made_on(current_context()->device);
    return Result::Success;
}

Result cuMemGetAllocationGranularity(size_t *bytes, const AllocationProperties *properties,
                                     Granularity /*granularity*/) {
    if (!is_possible(*properties) || !is_device(properties->location.id)) {
        return Result::InvalidValue;
    }
    *bytes = kGranularity;
    return Result::Success;
}

Result cuMemCreate(Memory *memory, size_t bytes, const AllocationProperties *properties, unsigned long long flags) {
    if (!is_possible(*properties) || flags != 0 || bytes == 0 || bytes % kGranularity != 0) {
        return Result::InvalidValue;
    }
    const Device device = properties->location.id;
    if (!is_device(device)) {
        return Result::InvalidDevice;
    }
    if (context_of(device).failure != Result::Success) {
        return context_of(device).failure;
    }
    auto physical = make_physical(bytes, device);
    if (physical == nullptr) {
        return Result::OutOfMemory;
    }
    physical->for_adapters = properties->gpu_direct_rdma_capable != 0;
    const std::unique_lock lock(memories().mutex);
    memories().known[identity(physical->fd)] = physical;
    *memory = add_handle(std::move(physical));
    return Result::Success;
}

Result cuMemRelease(Memory memory) {
    const std::unique_lock lock(memories().mutex);
    return memories().handles.erase(memory) == 1 ? Result::Success : Result::InvalidValue;
}

Result cuMemExportToShareableHandle(void *handle, Memory memory, HandleType type, unsigned long long flags) {
    const std::shared_lock lock(memories().mutex);
    const auto found = memories().handles.find(memory);
    if (found == memories().handles.end() || type != HandleType::PosixFileDescriptor || flags != 0) {
        return Result::InvalidValue;
    }
    const int fd = fcntl(found->second->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        return Result::OutOfMemory;
    }
    *static_cast<int *>(handle) = fd;
    return Result::Success;
}

// The caller keeps its descriptor.
Result cuMemImportFromShareableHandle(Memory *memory, void *handle, HandleType type) {
    const int fd = static_cast<int>(reinterpret_cast<intptr_t>(handle));
    const int number = device_number(fd);
    if (number < 0 || type != HandleType::PosixFileDescriptor) {
        return Result::InvalidValue;
    }
    const Device device = ordinal_of(number);
    if (device < 0) {
        return Result::InvalidDevice;
    }
    const std::unique_lock lock(memories().mutex);
    auto physical = import_physical(fd, device);
    if (physical == nullptr) {
        return Result::OutOfMemory;
    }
    *memory = add_handle(std::move(physical));
    return Result::Success;
}

}  // namespace fake_cuda

// SPDX-License-Identifier: Apache-2.0
#include "memory/memory_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "base/deadline.h"
#include "topology/host.h"

namespace odc {

namespace {

constexpr int64_t kStallNs = 5'000'000'000;  // without kProgressBytes less free memory
constexpr uint64_t kProgressBytes = uint64_t{64} << 20;

}  // namespace

MemoryLock::MemoryLock() : file_(open("/proc/meminfo", O_RDONLY | O_CLOEXEC)) {
    int64_t until_ns = now_ns() + kStallNs;
    uint64_t available = 0;  // at the last check; 0: not checked yet
    while (file_.valid() && flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
        const bool is_held = errno == EWOULDBLOCK || errno == EINTR;
        if (is_held && now_ns() >= until_ns) {
            const uint64_t now_available = available_memory();
            until_ns = available == 0 || now_available + kProgressBytes <= available ? now_ns() + kStallNs : 0;
            available = now_available;
        }
        if (!is_held || until_ns == 0) {
            file_ = Fd();
            return;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

MemoryLock::~MemoryLock() {
    if (file_.valid()) {
        flock(file_.get(), LOCK_UN);  // close() alone would not unlock while a forked child has the file open
    }
}

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
#include "memory_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "patience.h"

namespace odc {

namespace {

constexpr int64_t kMostNs = 5'000'000'000;

}  // namespace

MemoryLock::MemoryLock() : file_(open("/proc/meminfo", O_RDONLY | O_CLOEXEC)) {
    const int64_t until_ns = now_ns() + kMostNs;
    while (file_.valid() && flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
        if ((errno != EWOULDBLOCK && errno != EINTR) || now_ns() >= until_ns) {
            file_ = Fd();
            return;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

MemoryLock::~MemoryLock() {
    if (file_.valid()) {
        flock(file_.get(), LOCK_UN);  // closing would not do before a child forked meanwhile has closed it, too
    }
}

}  // namespace odc

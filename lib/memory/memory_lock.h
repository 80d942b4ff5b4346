// SPDX-License-Identifier: Apache-2.0
// Held while a process checks how much memory is left and allocates. Ranks register at the same moment: if each checked before
// any allocated, together they would exceed their control group's limit, and the kernel would kill one.
#pragma once

#include "base/fd.h"

namespace odc {

// One lock (flock of /proc/meminfo) for all processes that see the same /proc, because a control group may hold several jobs
// and users. The kernel releases it when its holder dies. Any local user can hold it and so keep others from it, as is true of
// every lock that different jobs can find: the control group's files are readable by all, and an abstract socket's name can be
// taken first. Places that only this user can open do not exist everywhere (XDG_RUNTIME_DIR) or leave files behind.
class MemoryLock {
public:
    // Waits while its holders allocate. If free memory has not shrunk for 5 to 10 s, goes on without the lock: its holder may
    // be stopped. Without /proc there is no lock.
    MemoryLock();
    ~MemoryLock();
    MemoryLock(const MemoryLock &) = delete;
    MemoryLock &operator=(const MemoryLock &) = delete;

private:
    Fd file_;
};

}  // namespace odc

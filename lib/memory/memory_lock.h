// SPDX-License-Identifier: Apache-2.0
// Held while a process looks at how much memory is left and takes some. Ranks register at the same moment; if each looked
// before any of them took, they would overdraw their control group together, and the kernel would kill one.
#pragma once

#include "base/fd.h"

namespace odc {

// One for all processes that see the same /proc, of any job and user, because a control group may hold several of either. The
// kernel releases what a dead process held. Any local user can hold it, too, and so take the lock away from the others. That is
// so of every lock on what ranks of different jobs all find: the control group's own files are open to all for reading, and an
// abstract socket's name can be taken first. What only this user can open is not there everywhere (XDG_RUNTIME_DIR), or stays
// behind (files, semaphores). What the ranks of one job share leaves out other jobs, and could be held besides.
class MemoryLock {
public:
    // Waits as long as its holders take memory; after 5 s to 10 s in which they take none it goes on without: the holder may
    // be stopped. Without /proc there is no lock.
    MemoryLock();
    ~MemoryLock();
    MemoryLock(const MemoryLock &) = delete;
    MemoryLock &operator=(const MemoryLock &) = delete;

private:
    Fd file_;
};

}  // namespace odc

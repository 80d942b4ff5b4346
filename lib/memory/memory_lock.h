// SPDX-License-Identifier: Apache-2.0
// Held while a process looks at how much memory is left and takes some. Ranks register at the same moment; if each looked
// before any of them took, they would overdraw their control group together, and the kernel would kill one.
#pragma once

#include "base/fd.h"

namespace odc {

// One for all processes that see the same /proc, of any job and user. The kernel releases what a dead process held.
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

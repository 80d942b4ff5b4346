// SPDX-License-Identifier: Apache-2.0
#include "base/process.h"

#include "base/fd.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace odc {

bool dead(int pidfd) {
    pollfd entry{pidfd, POLLIN, 0};
    return poll(&entry, 1, 0) == 1;
}

bool gone(int pid) {
    if (pid == 0) {
        return false;
    }
    const Fd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    return pidfd.valid() ? dead(pidfd.get()) : errno == ESRCH;
}

}  // namespace odc

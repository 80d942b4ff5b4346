// SPDX-License-Identifier: Apache-2.0
// Datagrams with file descriptors over Unix sockets that preserve message boundaries. Calls do not block.
#pragma once

#include "base/fd.h"

#include <sys/types.h>

#include <cstddef>
#include <vector>

namespace odc {

constexpr size_t kMostFds = 253;  // in one message: SCM_MAX_FD of the kernel

// As sendmsg.
ssize_t send_with_fds(int socket, const void *message, size_t bytes, const std::vector<int> &fds);

struct MessageFds {
    std::vector<Fd> fds;
    bool cut = false;  // some descriptors were dropped: this process has too many open
};
// As recvmsg, but never tells of a peer's end before its last message. Linux does: where the peer closed before it had read our
// message, it resets the connection first; and recvmsg looks at the queue, then at the connection, and a peer may send and close
// between.
ssize_t receive_with_fds(int socket, void *message, size_t bytes, MessageFds *out);

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/listener_probe.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

namespace odc {

ListenerProbe::ListenerProbe(const std::vector<std::byte> &address)
    : socket_(socket(reinterpret_cast<const sockaddr *>(address.data())->sa_family,
                     SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)),
      error_(0) {
    if (!socket_.valid()) {
        return;  // counts as open, which is harmless
    }
    // Closes by a reset: a libfabric before 2.2 that accepts a connection and reads its end may keep it, and the peer's progress
    // thread then wakes for it without a pause (ofiwg/libfabric commit 86ae6d745).
    const linger reset{1, 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    if (connect(socket_.get(), reinterpret_cast<const sockaddr *>(address.data()),
                static_cast<socklen_t>(address.size())) != 0) {
        error_ = errno;
    }
}

ListenerProbe::Answer ListenerProbe::poll() {
    pollfd entry{socket_.get(), POLLOUT, 0};
    if (error_ == EINPROGRESS && ::poll(&entry, 1, 0) == 1) {
        socklen_t bytes = sizeof(error_);
        getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error_, &bytes);
    }
    if (error_ == EINPROGRESS) {
        return Answer::Pending;
    }
    return error_ == ECONNREFUSED ? Answer::Refused : Answer::Open;
}

}  // namespace odc

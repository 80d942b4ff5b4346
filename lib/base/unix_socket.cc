// SPDX-License-Identifier: Apache-2.0
#include "base/unix_socket.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace odc {

namespace {

ssize_t receive_once(int socket, void *message, size_t bytes, MessageFds *out) {
    iovec data{message, bytes};
    alignas(cmsghdr) char control[CMSG_SPACE(kMostFds * sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    const ssize_t received = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (received < 0) {
        return received;
    }
    out->cut = (header.msg_flags & MSG_CTRUNC) != 0;
    for (cmsghdr *item = CMSG_FIRSTHDR(&header); item != nullptr; item = CMSG_NXTHDR(&header, item)) {
        if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        const size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; ++i) {
            int fd = -1;
            std::memcpy(&fd, CMSG_DATA(item) + i * sizeof(int), sizeof(fd));
            out->fds.emplace_back(fd);
        }
    }
    return received;
}

}  // namespace

ssize_t send_with_fds(int socket, const void *message, size_t bytes, const std::vector<int> &fds) {
    iovec data{const_cast<void *>(message), bytes};
    alignas(cmsghdr) char control[CMSG_SPACE(kMostFds * sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    if (const size_t fd_bytes = fds.size() * sizeof(int); fd_bytes > 0) {
        header.msg_control = control;
        header.msg_controllen = CMSG_SPACE(fd_bytes);
        cmsghdr *item = CMSG_FIRSTHDR(&header);
        item->cmsg_level = SOL_SOCKET;
        item->cmsg_type = SCM_RIGHTS;
        item->cmsg_len = CMSG_LEN(fd_bytes);
        std::memcpy(CMSG_DATA(item), fds.data(), fd_bytes);
    }
    return sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t receive_with_fds(int socket, void *message, size_t bytes, MessageFds *out) {
    const ssize_t received = receive_once(socket, message, bytes, out);
    const bool ended = received == 0 || (received < 0 && errno == ECONNRESET);
    return ended ? receive_once(socket, message, bytes, out) : received;
}

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
#include "inbox.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "status.h"

namespace odc {

Inbox::Inbox() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
        fail_errno("socketpair for GPU memory of other ranks");
    }
    receiving_ = Fd(ends[0]);
    slot_ = Fd(ends[1]);
}

std::optional<Inbox::Delivery> Inbox::take() {
    Delivery delivery{};
    iovec data{&delivery.letter, sizeof(delivery.letter)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    const ssize_t bytes = recvmsg(receiving_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (bytes < 0) {
        return std::nullopt;
    }
    if (const cmsghdr *item = CMSG_FIRSTHDR(&header); item != nullptr && item->cmsg_type == SCM_RIGHTS) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(item), sizeof(fd));
        delivery.memory = Fd(fd);
    }
    return delivery;
}

bool Outbox::post(const RegionLetter &letter, int memory) {
    iovec data{const_cast<RegionLetter *>(&letter), sizeof(letter)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr *item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(item), &memory, sizeof(memory));
    const ssize_t sent = sendmsg(slot_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    // A dead rank's mail is nobody's; its death is seen elsewhere.
    return sent >= 0 || errno == EPIPE || errno == ECONNRESET || errno == ECONNREFUSED || errno == ENOTCONN;
}

void Outbox::send(const RegionLetter &letter, const Fd &memory) {
    if (flush() && post(letter, memory.get())) {
        return;
    }
    const int copy = fcntl(memory.get(), F_DUPFD_CLOEXEC, 0);
    if (copy < 0) {
        fail_errno("duplicating a descriptor");
    }
    waiting_.push_back({letter, Fd(copy)});
}

bool Outbox::flush() {
    while (!waiting_.empty() && post(waiting_.front().letter, waiting_.front().memory.get())) {
        waiting_.pop_front();
    }
    return waiting_.empty();
}

}  // namespace odc

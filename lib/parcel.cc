// SPDX-License-Identifier: Apache-2.0
#include "parcel.h"

#include <poll.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstring>
#include <thread>

namespace odc {

constexpr uint32_t kMagic = 0x4f44434e;  // changes with every change of Message

ucred peer_of(int socket) {
    ucred who{0, static_cast<uid_t>(-1), 0};
    socklen_t length = sizeof(who);
    getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &length);
    return who;
}

bool dead(int life) {
    pollfd entry{life, POLLIN, 0};
    return poll(&entry, 1, 0) == 1;
}

const char *how_it_went(const Fd &life) {
    pollfd entry{life.get(), POLLIN, 0};
    return life.valid() && poll(&entry, 1, 100) == 1 ? "died" : "gave up";
}

bool gone(int pid) {
    if (pid == 0) {
        return false;
    }
    const Fd life(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    return life.valid() ? dead(life.get()) : errno == ESRCH;
}

bool send_parcel(int socket, const Message &message, const std::vector<int> &fds, const Patience &patience) {
    iovec data{const_cast<Message *>(&message), sizeof(message)};
    alignas(cmsghdr) char control[CMSG_SPACE(kParcelFds * sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    if (const size_t bytes = fds.size() * sizeof(int); bytes > 0) {
        header.msg_control = control;
        header.msg_controllen = CMSG_SPACE(bytes);
        cmsghdr *item = CMSG_FIRSTHDR(&header);
        item->cmsg_level = SOL_SOCKET;
        item->cmsg_type = SCM_RIGHTS;
        item->cmsg_len = CMSG_LEN(bytes);
        std::memcpy(CMSG_DATA(item), fds.data(), bytes);
    }
    for (;;) {
        if (sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
            return true;
        }
        // ETOOMANYREFS: descriptors in flight are limited per user; their readers are taking them.
        if (errno != EAGAIN && errno != EINTR && errno != ETOOMANYREFS) {
            return false;
        }
        if (patience.over()) {
            return false;
        }
        patience.check_interrupted("odc_init");
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

Received receive_parcel(int socket, Parcel *out) {
    iovec data{&out->message, sizeof(out->message)};
    alignas(cmsghdr) char control[CMSG_SPACE(kParcelFds * sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    const ssize_t bytes = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (bytes < 0) {
        return errno == EAGAIN || errno == EINTR ? Received::Nothing : Received::Closed;
    }
    for (cmsghdr *item = CMSG_FIRSTHDR(&header); item != nullptr; item = CMSG_NXTHDR(&header, item)) {
        if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        int fds[kParcelFds];
        const size_t room = std::min(sizeof(fds), item->cmsg_len - CMSG_LEN(0));
        std::memcpy(fds, CMSG_DATA(item), room);
        for (size_t i = 0; i < room / sizeof(int); ++i) {
            out->fds[i] = Fd(fds[i]);
        }
    }
    if (header.msg_flags & MSG_CTRUNC) {
        fail(ODC_ERROR_SYSTEM,
             "odc_init could not receive a peer's descriptors: too many are open; raise the limit "
             "(ulimit -n)");
    }
    if (bytes != sizeof(Message) || out->message.magic != kMagic) {
        return Received::Closed;
    }
    return Received::Parcel;
}

Message make_message(Message::Kind kind, int rank, int size) {
    Message message{};
    message.magic = kMagic;
    message.kind = kind;
    message.rank = rank;
    message.size = size;
    message.pid = getpid();
    return message;
}

}  // namespace odc

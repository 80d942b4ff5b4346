// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/local/message.h"

#include <poll.h>
#include <sys/syscall.h>

#include <cerrno>
#include <thread>

namespace odc {

constexpr uint32_t kMagic = 0x4f444350;  // changes with every change of Message

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

bool gone(int pid) {
    if (pid == 0) {
        return false;
    }
    const Fd life(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    return life.valid() ? dead(life.get()) : errno == ESRCH;
}

namespace {

// Whether it carries as many as it names.
bool has_descriptors(const ReceivedMessage &received) {
    const Message &message = received.message;
    if (message.kind == Message::Refused) {
        return received.fds.empty();
    }
    if (message.member_count < 1 || message.member_count > static_cast<int32_t>(kMostMembers)) {
        return false;
    }
    size_t fds = 0;
    for (int32_t i = 0; i < message.member_count; ++i) {
        const int32_t own = message.members[i].fds;
        if (own < 3 || own > 4) {
            return false;
        }
        fds += static_cast<size_t>(own);
    }
    return fds == received.fds.size();
}

}  // namespace

bool send_message(int socket, const Message &message, const std::vector<int> &fds, const Deadline &deadline) {
    for (;;) {
        if (send_with_fds(socket, &message, sizeof(message), fds) >= 0) {
            return true;
        }
        // ETOOMANYREFS: descriptors in flight are limited per user; their readers are taking them.
        if (errno != EAGAIN && errno != EINTR && errno != ETOOMANYREFS) {
            return false;
        }
        if (deadline.over()) {
            return false;
        }
        deadline.check_interrupted("odc_init");
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

Received receive_message(int socket, ReceivedMessage *out) {
    MessageFds received;
    ssize_t bytes = receive_with_fds(socket, &out->message, sizeof(out->message), &received);
    // A peer that closed before it had read our message resets the connection; what it said before comes after that.
    if (bytes < 0 && errno == ECONNRESET) {
        bytes = receive_with_fds(socket, &out->message, sizeof(out->message), &received);
    }
    if (bytes < 0) {
        return errno == EAGAIN || errno == EINTR ? Received::Nothing : Received::Closed;
    }
    out->fds = std::move(received.fds);
    if (received.cut) {
        errno = EMFILE;  // or ENFILE, which the kernel does not tell apart here
        fail_errno("odc_init cannot receive a peer's descriptors");
    }
    const bool whole = bytes == sizeof(Message) && out->message.magic == kMagic;
    return whole && has_descriptors(*out) ? Received::Message : Received::Closed;
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

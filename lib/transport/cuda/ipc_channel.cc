// SPDX-License-Identifier: Apache-2.0
#include "transport/cuda/ipc_channel.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>

#include "base/error.h"
#include "base/unix_socket.h"

namespace odc {

IpcChannel::IpcChannel() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
        fail_errno("socketpair for GPU memory of other ranks");
    }
    receiving_ = Fd(ends[0]);
    slot_ = Fd(ends[1]);
}

std::optional<IpcChannel::Delivery> IpcChannel::take() {
    Delivery delivery{};
    MessageFds received;
    if (receive_with_fds(receiving_.get(), &delivery.message, sizeof(delivery.message), &received) < 0) {
        return std::nullopt;
    }
    if (!received.fds.empty()) {
        delivery.memory = std::move(received.fds[0]);
    }
    return delivery;
}

bool IpcSender::post(const RegionMessage &message, int memory) {
    const ssize_t sent = send_with_fds(slot_.get(), &message, sizeof(message), {memory});
    // A dead rank's mail is nobody's; its death is seen elsewhere.
    return sent >= 0 || errno == EPIPE || errno == ECONNRESET || errno == ECONNREFUSED || errno == ENOTCONN;
}

void IpcSender::send(const RegionMessage &message, const Fd &memory) {
    if (flush() && post(message, memory.get())) {
        return;
    }
    const int copy = fcntl(memory.get(), F_DUPFD_CLOEXEC, 0);
    if (copy < 0) {
        fail_errno("duplicating a descriptor");
    }
    waiting_.push_back({message, Fd(copy)});
}

bool IpcSender::flush() {
    while (!waiting_.empty() && post(waiting_.front().message, waiting_.front().memory.get())) {
        waiting_.pop_front();
    }
    return waiting_.empty();
}

}  // namespace odc

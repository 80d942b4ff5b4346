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
        fail_errno("socketpair for the GPU memory of other ranks");
    }
    receive_end_ = Fd(ends[0]);
    send_end_ = Fd(ends[1]);
}

std::optional<IpcChannel::Delivery> IpcChannel::receive() {
    Delivery delivery{};
    MessageFds received;
    if (receive_with_fds(receive_end_.get(), &delivery.message, sizeof(delivery.message), &received) < 0) {
        return std::nullopt;
    }
    if (!received.fds.empty()) {
        delivery.memory = std::move(received.fds[0]);
    }
    return delivery;
}

bool IpcSender::try_send(const RegionMessage &message, int memory) {
    const ssize_t sent = send_with_fds(send_end_.get(), &message, sizeof(message), {memory});
    // Drops messages to a dead rank, whose death is detected elsewhere.
    return sent >= 0 || errno == EPIPE || errno == ECONNRESET || errno == ECONNREFUSED || errno == ENOTCONN;
}

void IpcSender::send(const RegionMessage &message, const Fd &memory) {
    if (flush() && try_send(message, memory.get())) {
        return;
    }
    const int copy = fcntl(memory.get(), F_DUPFD_CLOEXEC, 0);
    if (copy < 0) {
        fail_errno("duplicating a descriptor");
    }
    waiting_.push_back({message, Fd(copy)});
}

bool IpcSender::flush() {
    while (!waiting_.empty() && try_send(waiting_.front().message, waiting_.front().memory.get())) {
        waiting_.pop_front();
    }
    return waiting_.empty();
}

}  // namespace odc

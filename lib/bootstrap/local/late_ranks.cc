// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/local/late_ranks.h"

#include "base/tcp_socket.h"

#include <poll.h>

#include <cerrno>
#include <cstring>
#include <vector>

namespace odc {

namespace {

// Whoever waits at the listener now.
void accept_late(const Fd &listener, const Message &words, std::vector<Fd> &late) {
    const Deadline brief(100, nullptr, nullptr);
    Address from;
    for (Fd socket = accept_from(listener.get(), &from); socket.valid(); socket = accept_from(listener.get(), &from)) {
        if (peer_of(socket.get()).uid == geteuid()) {
            send_message(socket.get(), words, {}, brief);
            late.push_back(std::move(socket));
        }
    }
}

// Its connection is closed after its hello has been read, which says what rank it is.
bool has_said_hello(const Fd &socket, std::set<int> &absent) {
    Message hello{};
    MessageFds fds;
    const ssize_t bytes = receive_with_fds(socket.get(), &hello, sizeof(hello), &fds);
    if (bytes == sizeof(hello)) {
        absent.erase(hello.rank);
    }
    return bytes >= 0 || (errno != EAGAIN && errno != EINTR);
}

}  // namespace

Message farewell_message(int rank, int size, const std::string &why) {
    Message message = make_message(Message::Refused, rank, size);
    put(message.text, why);
    return message;
}

void tell_late_ranks(const Fd &listener, const Message &words, std::set<int> absent, const Deadline &deadline) {
    const int64_t until_ns = now_ns() + kFarewellNs;
    std::vector<Fd> late;
    for (;;) {
        accept_late(listener, words, late);
        std::erase_if(late, [&](const Fd &socket) { return has_said_hello(socket, absent); });
        if ((absent.empty() && late.empty()) || now_ns() >= until_ns || deadline.wants_to_stop()) {
            return;
        }
        // Without descriptors left for it, who waits at the listener keeps it readable.
        poll(nullptr, 0, 2);
    }
}

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/local/late_ranks.h"

#include "base/event_loop.h"
#include "bootstrap/local/message.h"
#include "bootstrap/local/socket.h"

#include <cerrno>
#include <vector>

namespace odc {

namespace {

// Whether the late rank's hello, which says its number, was read, or its connection ended: then the socket can be closed.
bool has_said_hello(const Fd &socket, std::set<int> &absent) {
    Hello hello{};
    MessageFds fds;
    const ssize_t bytes = receive_with_fds(socket.get(), &hello, sizeof(hello), &fds);
    if (bytes == sizeof(hello)) {
        absent.erase(hello.rank);
    }
    return bytes >= 0 || (errno != EAGAIN && errno != EINTR);
}

}  // namespace

void tell_late_ranks(Acceptor &acceptor, const std::string &why, std::set<int> absent, const Deadline &deadline) {
    const int64_t until_ns = now_ns() + kFailureNs;
    const Deadline brief(100, nullptr, nullptr);  // asks nobody, so it throws nothing
    EventLoop events(brief, "odc_init");
    std::vector<Fd> late;
    for (;;) {
        acceptor.accept_all([&](Fd socket, const Address &) {
            if (credentials_of(socket.get()).uid == geteuid()) {
                send_failure(socket.get(), why, brief);
                late.push_back(std::move(socket));
            }
        });
        std::erase_if(late, [&](const Fd &socket) { return has_said_hello(socket, absent); });
        if ((absent.empty() && late.empty()) || now_ns() >= until_ns || deadline.wants_to_stop()) {
            return;
        }
        acceptor.watch(events);
        for (const Fd &socket : late) {
            events.watch(socket.get());
        }
        events.wait(until_ns);
    }
}

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
#include "porch.h"

#include "tcp.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>

namespace odc {

namespace {

constexpr int64_t kAnswerMs = 5'000;  // a lost packet is sent again after 1 s and 3 s

// `through`: the interface that link-local addresses are meant of.
Address address_of(const Port &port, uint16_t number, const Port &through) {
    Address address;
    if (port.family == 4) {
        sockaddr_in four{};
        four.sin_family = AF_INET;
        four.sin_port = htons(number);
        std::memcpy(&four.sin_addr, port.address, sizeof(four.sin_addr));
        std::memcpy(&address.storage, &four, sizeof(four));
        address.bytes = sizeof(four);
    } else {
        sockaddr_in6 six{};
        six.sin6_family = AF_INET6;
        six.sin6_port = htons(number);
        six.sin6_scope_id = is_link_local(network_of(port)) ? if_nametoindex(through.domain) : 0;
        std::memcpy(&six.sin6_addr, port.address, sizeof(six.sin6_addr));
        std::memcpy(&address.storage, &six, sizeof(six));
        address.bytes = sizeof(six);
    }
    return address;
}

uint16_t number_of(const Fd &listener) {
    Address address;
    address.bytes = sizeof(address.storage);
    getsockname(listener.get(), reinterpret_cast<sockaddr *>(&address.storage), &address.bytes);
    return ntohs(address.family() == AF_INET6 ? reinterpret_cast<const sockaddr_in6 *>(address.get())->sin6_port
                                              : reinterpret_cast<const sockaddr_in *>(address.get())->sin_port);
}

bool has_doorstep(const Port &port) { return port.family != 0 && kProviders[provider_row(port)].wire == Wire::Sockets; }

// A knock on its way, or how it ended.
struct Knock {
    Fd socket;
    int error;  // EINPROGRESS: nobody has answered yet

    // "Nobody listens here" is an answer, too: the peer has left, and says why elsewhere.
    bool answered() const { return error == 0 || error == ECONNREFUSED; }
};

Knock knock_at(const Porch::Visit &visit) {
    Knock knock{connect_to(address_of(visit.to, visit.doorstep, visit.from)), EINPROGRESS};
    if (!knock.socket.valid()) {
        knock.error = errno;
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            fail_errno("a socket to a rank of another host");
        }
    }
    return knock;
}

void look(Knock &knock, short events) {
    if (events != 0) {
        knock.error = connect_result(knock.socket.get());
        knock.socket = Fd();
    }
}

}  // namespace

Porch::Porch(Ports &ports) {
    std::vector<Port> kept;
    for (const Port &port : ports.ports) {
        if (has_doorstep(port)) {
            Fd listener = listen_at(address_of(port, 0, port));
            if (!listener.valid()) {
                ports.refused.push_back({port.domain, say("this process cannot listen at ",
                                                          network_text(network_of(port)), ": ", std::strerror(errno))});
                continue;
            }
            doorsteps_[kept.size()] = number_of(listener);
            listeners_.push_back(std::move(listener));
        }
        kept.push_back(port);
    }
    ports.ports = std::move(kept);
}

std::vector<size_t> Porch::knock(const std::vector<Visit> &visits, const Patience &patience) {
    std::vector<Knock> knocks;
    knocks.reserve(visits.size());
    for (const Visit &visit : visits) {
        knocks.push_back(knock_at(visit));
    }
    const int64_t until_ns = now_ns() + std::min(patience.remaining_ms(), kAnswerMs) * 1'000'000;
    const auto open = [](const Knock &knock) { return knock.error == EINPROGRESS; };
    size_t let_in = 0;
    std::vector<pollfd> entries;
    while ((let_in < visits.size() || std::any_of(knocks.begin(), knocks.end(), open)) && now_ns() < until_ns) {
        entries.clear();
        for (const Knock &knock : knocks) {
            entries.push_back({knock.socket.get(), POLLOUT, 0});  // poll leaves out -1
        }
        for (const Fd &listener : listeners_) {
            entries.push_back({listener.get(), POLLIN, 0});
        }
        poll(entries.data(), entries.size(), patience.slice_ms());
        patience.check_interrupted("odc_init");
        for (size_t i = 0; i < knocks.size(); ++i) {
            look(knocks[i], entries[i].revents);
        }
        for (const Fd &listener : listeners_) {
            for (Address from; accept_from(listener.get(), &from).valid();) {
                ++let_in;
            }
        }
    }
    std::vector<size_t> unanswered;
    for (size_t i = 0; i < knocks.size(); ++i) {
        if (!knocks[i].answered()) {
            unanswered.push_back(i);
        }
    }
    return unanswered;
}

}  // namespace odc

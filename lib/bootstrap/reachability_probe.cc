// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/reachability_probe.h"

#include "base/event_loop.h"
#include "base/tcp_socket.h"
#include "bootstrap/protocol/message.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include <net/if.h>
#include <netinet/in.h>

namespace odc {

namespace {

constexpr int64_t kProbeAnswerNs = 5'000'000'000;  // a lost packet is sent again after 1 s and 3 s
constexpr int64_t kLingerNs = 1'000'000'000;
constexpr size_t kAtOnce = 64;

// `through`: the interface that link-local addresses are meant of.
Address address_of(const NicAddress &nic, uint16_t number, const NicAddress &through) {
    Address address;
    if (nic.family == 4) {
        sockaddr_in four{};
        four.sin_family = AF_INET;
        four.sin_port = htons(number);
        std::memcpy(&four.sin_addr, nic.address, sizeof(four.sin_addr));
        std::memcpy(&address.storage, &four, sizeof(four));
        address.bytes = sizeof(four);
    } else {
        sockaddr_in6 six{};
        six.sin6_family = AF_INET6;
        six.sin6_port = htons(number);
        six.sin6_scope_id = is_link_local(network_of(nic)) ? if_nametoindex(through.name) : 0;
        std::memcpy(&six.sin6_addr, nic.address, sizeof(six.sin6_addr));
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

bool is_probed(const NicAddress &nic) { return nic.family != 0 && provider_of(nic).wire == Wire::Sockets; }

enum class Answer { NotYet, Some, None };

// One on its way. A refusal is no answer: a probe port stays open until all have probed, so a firewall refused, or this
// host itself has the peer's address, too.
struct PendingProbe {
    size_t target;
    Fd socket;
    int64_t until_ns;
    size_t event = 0;

    Answer answer(const EventLoop &events) const {
        if (events.happened(event)) {
            return connect_result(socket.get()) == 0 ? Answer::Some : Answer::None;
        }
        return now_ns() < until_ns ? Answer::NotYet : Answer::None;
    }
};

// Nothing when it failed at once.
std::optional<PendingProbe> begin_probe(const ReachabilityProbe::Target &target, size_t number) {
    // From where the provider will connect, too: the answer must find its way back there.
    Fd socket =
        connect_to(address_of(target.to, target.probe_port, target.from), address_of(target.from, 0, target.from));
    if (socket.valid()) {
        return PendingProbe{number, std::move(socket), now_ns() + kProbeAnswerNs};
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM || errno == EADDRINUSE) {
        fail_errno("a socket to a rank of another host");
    }
    return std::nullopt;
}

}  // namespace

ReachabilityProbe::ReachabilityProbe(NicAddresses &addresses) {
    std::vector<NicAddress> kept;
    for (const NicAddress &nic : addresses.nics) {
        if (is_probed(nic)) {
            Fd listener = listen_at(address_of(nic, 0, nic));
            if (!listener.valid()) {
                addresses.refused.push_back({nic.name, formatted("this process cannot listen at {}: {}",
                                                                 network_text(network_of(nic)), std::strerror(errno))});
                continue;
            }
            probe_ports_[kept.size()] = number_of(listener);
            acceptor_.listen(std::move(listener));
        }
        kept.push_back(nic);
    }
    addresses.nics = std::move(kept);
}

size_t ReachabilityProbe::accept_probes() {
    size_t count = 0;
    acceptor_.accept_all([&](Fd, const Address &) { ++count; });
    if (acceptor_.is_crowded()) {
        errno = acceptor_.why_crowded();
        fail_errno("accepting a connection of a rank of another host");
    }
    return count;
}

std::vector<size_t> ReachabilityProbe::probe(const std::vector<Target> &targets, const Deadline &deadline) {
    EventLoop events(deadline, "odc_init");
    std::vector<size_t> unanswered;
    std::vector<PendingProbe> pending;
    size_t next = 0;
    size_t came = 0;
    int64_t linger_until_ns = 0;  // for those who still come, after all have answered
    for (;;) {
        for (; next < targets.size() && pending.size() < kAtOnce; ++next) {
            if (std::optional<PendingProbe> probe = begin_probe(targets[next], next)) {
                pending.push_back(std::move(*probe));
            } else {
                unanswered.push_back(next);
            }
        }
        if (pending.empty()) {
            linger_until_ns = linger_until_ns != 0 ? linger_until_ns : now_ns() + kLingerNs;
            if (came >= targets.size() || now_ns() >= linger_until_ns) {
                return unanswered;
            }
        }
        for (PendingProbe &probe : pending) {
            probe.event = events.watch(probe.socket.get(), POLLOUT);
        }
        const auto missing = [&] {
            const Target &target = targets[pending[0].target];
            return formatted("odc_init waited {:.3g} s; no answer yet from {}, tried from {}", deadline.waited_s(),
                             network_text(network_of(target.to)), target.from.name);
        };
        if (!pending.empty()) {
            deadline.log_if_long(missing);
        }
        acceptor_.watch(events);
        events.wait(pending.empty() ? linger_until_ns : deadline_after(deadline.remaining_ms()));
        came += accept_probes();
        std::erase_if(pending, [&](const PendingProbe &probe) {
            const Answer answer = probe.answer(events);
            if (answer == Answer::None) {
                unanswered.push_back(probe.target);
            }
            return answer != Answer::NotYet;
        });
        if (!pending.empty() && deadline.over()) {
            throw Error(ODC_ERROR_RENDEZVOUS, missing());
        }
    }
}

}  // namespace odc

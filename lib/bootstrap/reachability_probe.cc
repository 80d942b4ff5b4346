// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/reachability_probe.h"

#include "base/tcp_socket.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>

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

// A probe on its way. A refusal is no answer: a probe port stays open until all have probed, so a firewall refused, or this
// host itself has the peer's address, too.
struct Attempt {
    size_t visit;
    Fd socket;
    int64_t until_ns;

    Answer look(short events) const {
        if (events != 0) {
            return connect_result(socket.get()) == 0 ? Answer::Some : Answer::None;
        }
        return now_ns() < until_ns ? Answer::NotYet : Answer::None;
    }
};

// Nothing when it failed at once.
std::optional<Attempt> start_attempt(const ReachabilityProbe::Visit &visit, size_t place) {
    // From where the provider will connect, too: the answer must find its way back there.
    Fd socket = connect_to(address_of(visit.to, visit.probe_port, visit.from), address_of(visit.from, 0, visit.from));
    if (socket.valid()) {
        return Attempt{place, std::move(socket), now_ns() + kProbeAnswerNs};
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
                addresses.refused.push_back({nic.name, say("this process cannot listen at ",
                                                           network_text(network_of(nic)), ": ", std::strerror(errno))});
                continue;
            }
            probe_ports_[kept.size()] = number_of(listener);
            listeners_.push_back(std::move(listener));
        }
        kept.push_back(nic);
    }
    addresses.nics = std::move(kept);
}

size_t ReachabilityProbe::let_in() {
    size_t count = 0;
    for (const Fd &listener : listeners_) {
        for (Address from; accept_from(listener.get(), &from).valid();) {
            ++count;
        }
        if (errno != EAGAIN) {
            fail_errno("accepting a connection of a rank of another host");
        }
    }
    return count;
}

std::vector<size_t> ReachabilityProbe::probe(const std::vector<Visit> &visits, const Deadline &deadline) {
    std::vector<size_t> unanswered;
    std::vector<Attempt> attempts;
    size_t next = 0;
    size_t came = 0;
    int64_t linger_until_ns = 0;  // for those who still come, after all have answered
    for (;;) {
        for (; next < visits.size() && attempts.size() < kAtOnce; ++next) {
            if (std::optional<Attempt> attempt = start_attempt(visits[next], next)) {
                attempts.push_back(std::move(*attempt));
            } else {
                unanswered.push_back(next);
            }
        }
        if (attempts.empty()) {
            linger_until_ns = linger_until_ns != 0 ? linger_until_ns : now_ns() + kLingerNs;
            if (came >= visits.size() || now_ns() >= linger_until_ns) {
                return unanswered;
            }
        }
        std::vector<pollfd> entries;
        for (const Attempt &attempt : attempts) {
            entries.push_back({attempt.socket.get(), POLLOUT, 0});
        }
        for (const Fd &listener : listeners_) {
            entries.push_back({listener.get(), POLLIN, 0});
        }
        poll(entries.data(), entries.size(), deadline.slice_ms());
        const auto missing = [&] {
            const Visit &visit = visits[attempts[0].visit];
            return say("odc_init waited ", deadline.waited_s(), " s; no answer yet from ",
                       network_text(network_of(visit.to)), ", tried from ", visit.from.name);
        };
        if (!attempts.empty()) {
            deadline.say_long(missing);
        }
        deadline.check_interrupted("odc_init");
        came += let_in();
        size_t place = 0;
        std::erase_if(attempts, [&](const Attempt &attempt) {
            const Answer answer = attempt.look(entries[place++].revents);
            if (answer == Answer::None) {
                unanswered.push_back(attempt.visit);
            }
            return answer != Answer::NotYet;
        });
        if (!attempts.empty() && deadline.over()) {
            fail(ODC_ERROR_RENDEZVOUS, missing());
        }
    }
}

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
#include "base/tcp_socket.h"

#include "base/error.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

namespace odc {
namespace {

bool is_port(const std::string &text) {
    unsigned port = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), port);
    return error == std::errc() && stop == text.data() + text.size() && port >= 1 && port <= 65535;
}

// SO_REUSEADDR also on the connecting side: while rank 0 does not listen yet, the kernel may pick rank 0's own port as the
// ephemeral port of a connection attempt, which must not keep rank 0 from binding it.
Fd make_socket(const Address &address) {
    Fd fd(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
    const int on = 1;
    if (fd.valid()) {
        setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    }
    return fd;
}

// Messages are few and small.
void disable_nagle(const Fd &fd) {
    const int on = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

// Errors of accept4 that concern a connection that has ended meanwhile; the next one may succeed.
bool is_lost_connection(int error) {
    return error == EINTR || error == ECONNABORTED || error == EPROTO || error == ENOPROTOOPT || error == ENETDOWN ||
           error == ENETUNREACH || error == EHOSTDOWN || error == EHOSTUNREACH || error == ENONET;
}

}  // namespace

HostPort parse_endpoint(const std::string &text) {
    HostPort endpoint{text, "", ""};
    const size_t colon = text.rfind(':');
    if (colon != std::string::npos) {
        endpoint.host = text.substr(0, colon);
        endpoint.port = text.substr(colon + 1);
    }
    std::string &host = endpoint.host;
    const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
    if (bracketed) {
        host = host.substr(1, host.size() - 2);
    }
    // A colon outside brackets may belong to an IPv6 address without a port.
    if (host.empty() || (!bracketed && host.find_first_of(":[]") != std::string::npos) || !is_port(endpoint.port)) {
        fail(ODC_ERROR_ARGUMENT,
             "the rendezvous \"{}\" is not an address: give host:port or [v6]:port, as in \"node1:5000\" "
             "or \"[fe80::1%eth0]:5000\"",
             text);
    }
    return endpoint;
}

bool Address::operator==(const Address &other) const {
    return bytes == other.bytes && std::memcmp(&storage, &other.storage, bytes) == 0;
}

std::string Address::host() const {
    char text[NI_MAXHOST] = "";
    if (getnameinfo(get(), bytes, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) {
        return "an unknown address";
    }
    return text;
}

std::string Address::host_port() const {
    char port[NI_MAXSERV] = "";
    getnameinfo(get(), bytes, nullptr, 0, port, sizeof(port), NI_NUMERICSERV);
    return family() == AF_INET6 ? formatted("[{}]:{}", host(), port) : formatted("{}:{}", host(), port);
}

std::vector<Address> resolve(const HostPort &endpoint, std::string *why) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo *list = nullptr;
    const int error = getaddrinfo(endpoint.host.c_str(), endpoint.port.c_str(), &hints, &list);
    if (error != 0) {
        *why = gai_strerror(error);
        return {};
    }
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, freeaddrinfo);
    std::vector<Address> addresses;
    for (const addrinfo *item = list; item != nullptr; item = item->ai_next) {
        Address address;
        address.bytes = item->ai_addrlen;
        std::memcpy(&address.storage, item->ai_addr, item->ai_addrlen);
        // glibc repeats an address that /etc/hosts lists twice.
        if (std::find(addresses.begin(), addresses.end(), address) == addresses.end()) {
            addresses.push_back(address);
        }
    }
    return addresses;
}

Fd listen_at(const Address &address) {
    Fd fd = make_socket(address);
    if (!fd.valid()) {
        return fd;
    }
    if (bind(fd.get(), address.get(), address.bytes) != 0 || listen(fd.get(), SOMAXCONN) != 0) {
        const int error = errno;
        fd = Fd();
        errno = error;
    }
    return fd;
}

Fd connect_to(const Address &address, const std::optional<Address> &from) {
    Fd fd = make_socket(address);
    if (!fd.valid()) {
        return fd;
    }
    disable_nagle(fd);
    if ((from && bind(fd.get(), from->get(), from->bytes) != 0) ||
        (connect(fd.get(), address.get(), address.bytes) != 0 && errno != EINPROGRESS)) {
        const int error = errno;
        fd = Fd();
        errno = error;
    }
    return fd;
}

int connect_result(int fd) {
    int error = 0;
    socklen_t bytes = sizeof(error);
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) {
        return errno;
    }
    if (error != 0) {
        return error;
    }
    Address here;
    Address there;
    here.bytes = there.bytes = sizeof(here.storage);
    if (getsockname(fd, reinterpret_cast<sockaddr *>(&here.storage), &here.bytes) != 0 ||
        getpeername(fd, reinterpret_cast<sockaddr *>(&there.storage), &there.bytes) != 0) {
        return errno;
    }
    return here == there ? ECONNREFUSED : 0;
}

Fd accept_from(int listener, Address *from) {
    Fd fd;
    do {
        from->bytes = sizeof(from->storage);
        fd = Fd(accept4(listener, reinterpret_cast<sockaddr *>(&from->storage), &from->bytes,
                        SOCK_CLOEXEC | SOCK_NONBLOCK));
    } while (!fd.valid() && is_lost_connection(errno));
    if (fd.valid() && from->family() != AF_UNIX) {
        disable_nagle(fd);
    }
    return fd;
}

}  // namespace odc

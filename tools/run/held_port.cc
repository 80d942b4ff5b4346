// SPDX-License-Identifier: Apache-2.0
#include "run/held_port.h"

#include "cli/exit.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace odc_tool {

namespace {

bool hold(int socket, const sockaddr *address, socklen_t bytes) {
    const int on = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    return bind(socket, address, bytes) == 0;
}

}  // namespace

HeldPort::HeldPort() : socket_(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in6 any6 = {};
    any6.sin6_family = AF_INET6;
    if (!hold(socket_, reinterpret_cast<sockaddr *>(&any6), sizeof any6)) {  // a host without IPv6
        close(socket_);
        socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in any = {};
        any.sin_family = AF_INET;
        if (!hold(socket_, reinterpret_cast<sockaddr *>(&any), sizeof any)) {
            throw Exit{1, fmt::format("no port for the ranks to meet at: {}", strerror(errno))};
        }
    }
}

HeldPort::~HeldPort() { close(socket_); }

int HeldPort::number() const {
    sockaddr_in6 address = {};  // IPv4 has the port at the same offset
    socklen_t bytes = sizeof address;
    getsockname(socket_, reinterpret_cast<sockaddr *>(&address), &bytes);
    return ntohs(address.sin6_port);
}

}  // namespace odc_tool

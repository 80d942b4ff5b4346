// SPDX-License-Identifier: Apache-2.0
// Parses and resolves "host:port" and makes sockets for its addresses, which stay sockaddr structs to keep IPv6 scope ids.
#pragma once

#include "base/fd.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <sys/socket.h>

namespace odc {

struct HostPort {
    std::string text;  // as the user wrote it
    std::string host;
    std::string port;
};

// Throws ODC_ERROR_ARGUMENT with an example of the right form.
HostPort parse_endpoint(const std::string &text);

struct Address {
    sockaddr_storage storage{};
    socklen_t bytes = 0;
    int family() const { return storage.ss_family; }
    const sockaddr *get() const { return reinterpret_cast<const sockaddr *>(&storage); }
    bool operator==(const Address &other) const;
    std::string host() const;       // "10.0.0.1", "fe80::1%eth0"
    std::string host_port() const;  // "10.0.0.1:5000", "[::1]:5000"
};

// Without duplicates, in the resolver's order; empty, with the reason in *why, if there are none. A name server that does not
// answer blocks this for 5 s and more, whatever the deadline and `interrupted`.
std::vector<Address> resolve(const HostPort &endpoint, std::string *why);

// A listening or connecting non-blocking socket; invalid, with errno set, on failure. connect_to binds to `from` if given and
// does not wait for the connection.
Fd listen_at(const Address &address);
Fd connect_to(const Address &address, const std::optional<Address> &from = {});
// The result of a finished connect: 0 or an errno, ECONNREFUSED also if the socket has connected to itself.
int connect_result(int fd);
// Accepts one connection at a TCP or Unix socket, non-blocking. Invalid with errno set otherwise: EAGAIN if there is none;
// with any other errno the connection stays queued and the listener readable.
Fd accept_from(int listener, Address *from);

}  // namespace odc

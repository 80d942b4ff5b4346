// SPDX-License-Identifier: Apache-2.0
// Where ranks of several hosts meet: a parsed "host:port", the addresses it stands for, and sockets there. Addresses
// stay whole sockaddr structs, so that IPv6 scope ids are kept.
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

// Throws ODC_ERROR_ARGUMENT, showing the right form.
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

// Each once, in the resolver's order; empty, with the reason in *why, when there are none. Asking a name server takes its
// own time (often 5 s and more when it is silent): neither a deadline nor `interrupted` ends that.
std::vector<Address> resolve(const HostPort &endpoint, std::string *why);

// A listening or connecting non-blocking socket; invalid, with errno set, on failure. `connect_to` only begins, `from` an
// address of this host or from the one that the kernel chooses.
Fd listen_at(const Address &address);
Fd connect_to(const Address &address, const std::optional<Address> &from = {});
// Of a socket whose connecting has ended: 0 or its errno; ECONNREFUSED, too, when it has only met itself.
int connect_result(int fd);
// Accepts one connection, also at a Unix socket, non-blocking. Invalid with errno set otherwise: EAGAIN when none waits,
// anything else when this process cannot accept it; then it still waits, and the listener stays readable.
Fd accept_from(int listener, Address *from);

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// The abstract Unix socket at which the ranks of one host meet; its name is made from the job's and the user's id.
#pragma once

#include "base/fd.h"

#include <string>

#include <sys/socket.h>
#include <sys/un.h>

namespace odc {

struct LocalAddress {
    sockaddr_un name{};
    socklen_t bytes = 0;
    const sockaddr *get() const { return reinterpret_cast<const sockaddr *>(&name); }
};

// Throws ODC_ERROR_ARGUMENT when the name is too long.
LocalAddress local_address(const std::string &job);

// Throws ODC_ERROR_SYSTEM when there are no descriptors left.
Fd make_local_socket();

// Binds and listens. Invalid when another process holds the name; throws ODC_ERROR_SYSTEM otherwise.
Fd listen_locally(const std::string &job);

// Returns the ids of the process that called connect() or listen() at the other end.
ucred credentials_of(int socket);

// Nothing may be sent to another user's process, which could hold the job's name. Throws ODC_ERROR_RENDEZVOUS.
void check_same_user(int socket, const std::string &job);

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/local/socket.h"

#include "base/error.h"

#include <cerrno>
#include <cstddef>
#include <cstring>

#include <unistd.h>

namespace odc {

LocalAddress local_address(const std::string &job) {
    // The user id keeps two users' jobs of one name apart.
    const std::string full = formatted("odc-{}-{}", geteuid(), job);
    LocalAddress address;
    address.name.sun_family = AF_UNIX;
    if (full.size() + 1 > sizeof(address.name.sun_path)) {
        fail(ODC_ERROR_ARGUMENT, "the job's name and group make {} bytes together, at most {} fit; choose shorter ones",
             full.size(), sizeof(address.name.sun_path) - 1);
    }
    std::memcpy(address.name.sun_path + 1, full.data(), full.size());
    address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + full.size());
    return address;
}

Fd make_local_socket() {
    Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.valid()) {
        fail_errno("socket for odc_init");
    }
    return fd;
}

Fd listen_locally(const std::string &job) {
    const LocalAddress address = local_address(job);
    Fd listener = make_local_socket();
    if (bind(listener.get(), address.get(), address.bytes) != 0) {
        if (errno != EADDRINUSE) {
            fail_errno("bind of odc_init's socket");
        }
        return Fd();
    }
    if (listen(listener.get(), SOMAXCONN) != 0) {
        fail_errno("listen on odc_init's socket");
    }
    return listener;
}

ucred credentials_of(int socket) {
    ucred who{0, static_cast<uid_t>(-1), 0};
    socklen_t length = sizeof(who);
    getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &length);
    return who;
}

void check_same_user(int socket, const std::string &job) {
    const ucred who = credentials_of(socket);
    if (who.uid != geteuid()) {
        fail(ODC_ERROR_RENDEZVOUS,
             "job \"{}\" belongs to user {} (pid {}), not to this one, {}; give the job another name", job, who.uid,
             who.pid, geteuid());
    }
}

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// A port of this host that the kernel gives to no other process while the test runs: bound but not listening, so that rank 0
// can still listen on it.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

class HeldPort {
public:
    HeldPort() : holder_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t bytes = sizeof(address);
        const int on = 1;
        setsockopt(holder_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
        auto *any = reinterpret_cast<sockaddr *>(&address);
        if (bind(holder_, any, bytes) == 0 && getsockname(holder_, any, &bytes) == 0) {
            port = std::to_string(ntohs(address.sin_port));
        }
    }
    HeldPort(const HeldPort &) = delete;
    HeldPort &operator=(const HeldPort &) = delete;
    ~HeldPort() { close(holder_); }

    std::string port;

private:
    int holder_;
};

// SPDX-License-Identifier: Apache-2.0
// Whether a process of another host still listens at its port. Asks its kernel by a TCP connection, because a provider that
// reconnects by itself does not report that nobody listens any more. Never waits.
#pragma once

#include "base/fd.h"

#include <cstddef>
#include <vector>

namespace odc {

class ListenerProbe {
public:
    // `address`: a sockaddr.
    explicit ListenerProbe(const std::vector<std::byte> &address);

    enum class Answer { Pending, Open, Refused };
    Answer poll();

private:
    Fd socket_;
    int error_;  // 0: connected; EINPROGRESS: pending
};

}  // namespace odc

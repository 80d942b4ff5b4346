// SPDX-License-Identifier: Apache-2.0
// Whether a process of another host still listens at its port, asked of its kernel: a provider that connects again by
// itself does not say that nobody answers there any more. Never waits.
#pragma once

#include "base/fd.h"

#include <cstddef>
#include <vector>

namespace odc {

class ListenerProbe {
public:
    // `address`: a sockaddr.
    explicit ListenerProbe(const std::vector<std::byte> &address);

    enum class Answer { NotYet, Open, Refused };
    Answer look();

private:
    Fd socket_;
    int error_;  // 0: connected; EINPROGRESS: not known yet
};

}  // namespace odc

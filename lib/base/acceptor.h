// SPDX-License-Identifier: Apache-2.0
// Listening sockets, and whether a connection waits at one of them that cannot be accepted: without descriptors or memory left
// for it, it keeps its listener readable, so nobody waits for the listener's events until there may be room again.
#pragma once

#include "base/event_loop.h"
#include "base/fd.h"
#include "base/tcp_socket.h"

#include <cerrno>
#include <utility>
#include <vector>

namespace odc {

class Acceptor {
public:
    void listen(Fd listener) { listeners_.push_back(std::move(listener)); }
    void close() { listeners_.clear(); }
    bool listens() const { return !listeners_.empty(); }

    void watch(EventLoop &events) const {
        for (const Fd &listener : listeners_) {
            if (!is_crowded()) {
                events.watch(listener.get());
            }
        }
    }

    // Calls `take(Fd, const Address &)` for each connection that waits, at most kMostAtOnce a listener, so that it returns soon.
    template <class Take>
    void accept_all(Take take) {
        why_crowded_ = 0;
        for (const Fd &listener : listeners_) {
            for (int taken = 0; taken < kMostAtOnce; ++taken) {
                Address from;
                Fd one = accept_from(listener.get(), &from);
                if (!one.valid()) {
                    why_crowded_ = errno != EAGAIN ? errno : why_crowded_;
                    break;
                }
                take(std::move(one), from);
            }
        }
    }
    bool is_crowded() const { return why_crowded_ != 0; }
    int why_crowded() const { return why_crowded_; }  // errno

private:
    static constexpr int kMostAtOnce = 128;

    std::vector<Fd> listeners_;
    int why_crowded_ = 0;
};

}  // namespace odc

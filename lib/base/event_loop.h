// SPDX-License-Identifier: Apache-2.0
// One wait for events of descriptors: sockets, and processes by their pidfds. What waits for others goes through here,
// so that the caller's `interrupted` is asked while it lasts. By poll(2): it needs no descriptor of its own, also
// where there are none left, and keeps nothing of a descriptor that has been closed here and is open in a forked child, as epoll does.
#pragma once

#include "base/deadline.h"

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace odc {

class EventLoop {
public:
    // `call`: whose waits these are, for errors.
    EventLoop(const Deadline &deadline, const char *call) : deadline_(deadline), call_(call) {}

    // For the next wait only. Of -1 there are no events. Returns a number for happened().
    size_t watch(int fd, short events = POLLIN);
    // Until one of them happens, or `until_ns`; for 20 ms at most, then the caller looks at its deadlines and waits on. Throws
    // ODC_ERROR_INTERRUPTED.
    void wait(int64_t until_ns);
    // In the last wait; also a hang-up or an error, which reading or writing tells.
    bool happened(size_t event) const { return event < seen_.size() && seen_[event].revents != 0; }
    // Nobody is watched: for what the kernel has no event for.
    void sleep(int64_t until_ns);

private:
    const Deadline &deadline_;
    const char *call_;
    std::vector<pollfd> next_;
    std::vector<pollfd> seen_;
};

// How long to sleep before trying again what the kernel has no event for: twice as long each time.
class Backoff {
public:
    Backoff(int64_t first_ms, int64_t last_ms) : next_ns_(first_ms * 1'000'000), last_ns_(last_ms * 1'000'000) {}
    int64_t next_ns();

private:
    int64_t next_ns_;
    int64_t last_ns_;
};

}  // namespace odc

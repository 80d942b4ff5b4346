// SPDX-License-Identifier: Apache-2.0
// Waits for events of descriptors: sockets, and processes by their pidfds. The caller's `interrupted` is asked during each wait.
// Uses poll(2), which needs no descriptor of its own and, unlike epoll, keeps nothing of a descriptor that has been closed here
// and is open in a forked child.
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

    // Watches a descriptor in the next wait only; -1 has no events. Returns the event's number for happened().
    size_t watch(int fd, short events = POLLIN);
    // Waits until an event happens or `until_ns` has come, 20 ms at most: the caller then looks at its deadlines and waits on.
    // Throws ODC_ERROR_INTERRUPTED.
    void wait(int64_t until_ns);
    // Whether the event happened in the last wait. A hang-up or an error counts, too; reading or writing tells which.
    bool happened(size_t event) const { return event < seen_.size() && seen_[event].revents != 0; }
    // Waits for the time alone: for what the kernel has no event for.
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

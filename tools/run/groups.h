// SPDX-License-Identifier: Apache-2.0
// The process groups of what a supervisor started.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace odc_tool {

// In memory that the guard shares: it outlives us if we are killed, and only then kills what is left of each group. (The
// kernel kills the processes themselves, but not what they have started.)
class Groups {
public:
    explicit Groups(size_t count);
    Groups(const Groups &) = delete;
    Groups &operator=(const Groups &) = delete;
    ~Groups();

    pid_t &operator[](size_t index) { return pids_[index]; }
    bool contains(pid_t group) const;
    // The number of a group without members may become somebody else's.
    void forget_ended();
    void signal_all(int signal) const;

private:
    size_t bytes() const { return count_ * sizeof(pid_t); }
    size_t count_;
    pid_t *pids_;
};

}  // namespace odc_tool

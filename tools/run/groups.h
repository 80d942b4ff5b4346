// SPDX-License-Identifier: Apache-2.0
// The process groups started by a supervisor.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace odc_tool {

// In memory shared with the guard process, which outlives this one if it is killed, and then kills what is left of each group.
// (The kernel kills the processes themselves, but not their children.)
class Groups {
public:
    explicit Groups(size_t count);
    Groups(const Groups &) = delete;
    Groups &operator=(const Groups &) = delete;
    ~Groups();

    pid_t &operator[](size_t index) { return pids_[index]; }
    bool contains(pid_t group) const;
    // The number of an empty group may be reused by another one.
    void forget_ended();
    void signal_all(int signal) const;

private:
    size_t bytes() const { return count_ * sizeof(pid_t); }
    size_t count_;
    pid_t *pids_;
};

}  // namespace odc_tool

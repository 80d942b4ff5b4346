// SPDX-License-Identifier: Apache-2.0
// The signals that a supervisor passes on, read from a descriptor.
#pragma once

#include <csignal>

namespace odc_tool {

// Blocks the signals that are passed on and reads them from a descriptor instead, until destroyed.
class Signals {
public:
    Signals();
    Signals(const Signals &) = delete;
    Signals &operator=(const Signals &) = delete;
    ~Signals();

    int fd() const { return fd_; }
    // Also needed in a new process before it executes the user's program.
    void restore() const;
    void restore_mask() const;
    // The next signal, or 0.
    int take() const;

private:
    int fd_ = -1;
    sigset_t mask_before_ = {};
    struct sigaction pipe_before_ = {};
};

}  // namespace odc_tool

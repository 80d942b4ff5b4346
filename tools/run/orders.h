// SPDX-License-Identifier: Apache-2.0
// Orders are lines that a supervisor writes to the agent of a host: the job, then signals ("signal 2"). They end with the
// supervisor, however it ends.
#pragma once

#include <poll.h>

#include <string>
#include <vector>

namespace odc_tool {

// The writing end. Never blocks.
class OrderPipe {
public:
    OrderPipe() = default;
    OrderPipe(const OrderPipe &) = delete;
    OrderPipe(OrderPipe &&other) = delete;
    OrderPipe &operator=(OrderPipe &&) = delete;
    ~OrderPipe() { end(); }

    // Returns the reading end, which the caller closes. Throws Exit.
    int open();
    bool was_opened() const { return opened_; }
    // Whether the reader has received an order and is still there.
    bool is_obeyed() const { return fd_ >= 0 && written_; }
    void write(const std::string &text);
    void end();
    void add_poll(std::vector<pollfd> &polls) const;
    void flush();

private:
    int fd_ = -1;
    bool opened_ = false;
    bool written_ = false;
    std::string pending_;
};

// The reading end: does not own the descriptor; -1 has no orders and no end.
class OrderReader {
public:
    explicit OrderReader(int fd);

    bool ended() const { return ended_; }
    void add_poll(std::vector<pollfd> &polls) const;
    // The next complete line, if it has arrived; otherwise empty.
    std::string take();

private:
    int fd_;
    bool ended_ = false;
    std::string text_;
};

}  // namespace odc_tool

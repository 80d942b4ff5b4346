// SPDX-License-Identifier: Apache-2.0
#include "run/orders.h"

#include "cli/exit.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace odc_tool {

int OrderPipe::open() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        throw Exit{1, fmt::format("no pipe for orders: {}", strerror(errno))};
    }
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    fd_ = ends[1];
    opened_ = true;
    return ends[0];
}

void OrderPipe::write(const std::string &text) {
    written_ = true;
    pending_ += text;
    flush();
}

void OrderPipe::end() {
    if (fd_ >= 0) {
        close(fd_);
        fd_ = -1;
    }
}

void OrderPipe::add_poll(std::vector<pollfd> &polls) const {
    if (fd_ >= 0 && !pending_.empty()) {
        polls.push_back({fd_, POLLOUT, 0});
    }
}

// An agent that has gone reads no orders; its end is noticed elsewhere.
void OrderPipe::flush() {
    while (fd_ >= 0 && !pending_.empty()) {
        const ssize_t wrote = ::write(fd_, pending_.data(), pending_.size());
        if (wrote <= 0) {
            if (errno != EAGAIN && errno != EINTR) {
                end();
            }
            return;
        }
        pending_.erase(0, static_cast<size_t>(wrote));
    }
}

OrderReader::OrderReader(int fd) : fd_(fd) {
    if (fd_ >= 0) {
        fcntl(fd_, F_SETFL, O_NONBLOCK);
    }
}

void OrderReader::add_poll(std::vector<pollfd> &polls) const {
    if (fd_ >= 0 && !ended_) {
        polls.push_back({fd_, POLLIN, 0});
    }
}

std::string OrderReader::take() {
    char bytes[4096];
    while (fd_ >= 0 && !ended_ && text_.find('\n') == std::string::npos) {
        const ssize_t got = read(fd_, bytes, sizeof bytes);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
            return "";
        }
        ended_ = got <= 0;
        text_.append(bytes, ended_ ? 0 : static_cast<size_t>(got));
    }
    const size_t end = text_.find('\n');
    std::string line = text_.substr(0, end == std::string::npos ? 0 : end);
    text_.erase(0, end == std::string::npos ? text_.size() : end + 1);
    return line;
}

}  // namespace odc_tool

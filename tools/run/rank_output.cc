// SPDX-License-Identifier: Apache-2.0
// Forwards what ranks print to this process's stdout and stderr.
#include "run/rank_output.h"

#include "cli/exit.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace odc_tool {

namespace {

constexpr size_t kLongestLine = size_t{64} << 10;  // a longer one is continued on another prefixed line
constexpr size_t kQueueBytes = size_t{1} << 20;    // beyond this the ranks wait for the readers of the output
constexpr size_t kWriteBytes = 4096;               // a pipe that polls writable takes these without blocking (PIPE_BUF)

}  // namespace

RankOutput::~RankOutput() {
    for (const Source &source : sources_) {
        if (source.fd >= 0) {
            close(source.fd);
        }
    }
}

std::array<int, 2> RankOutput::open(const std::string &prefix) {
    std::array<int, 2> write_ends = {-1, -1};
    for (int stream = 0; stream < 2; ++stream) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) != 0) {
            const int error = errno;
            if (stream == 1) {
                close(write_ends[0]);
            }
            throw Exit{1, fmt::format("no pipe for the output of a rank: {}", strerror(error))};
        }
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
        write_ends[static_cast<size_t>(stream)] = ends[1];
        sources_.push_back({ends[0], stream + 1, prefix, {}});
    }
    return write_ends;
}

void RankOutput::warn(const std::string &line) { push(STDERR_FILENO, line + "\n"); }
void RankOutput::report(const std::string &line) { push(STDOUT_FILENO, line + "\n"); }

bool RankOutput::has_room() const { return queued_bytes_ < kQueueBytes; }

void RankOutput::add_polls(std::vector<pollfd> &polls) const {
    if (!queue_.empty()) {
        polls.push_back({queue_.front().target, POLLOUT, 0});
    }
    for (const Source &source : sources_) {
        if (source.fd >= 0 && has_room()) {
            polls.push_back({source.fd, POLLIN, 0});
        }
    }
}

void RankOutput::pump() {
    for (Source &source : sources_) {
        if (source.fd >= 0 && has_room()) {
            read_source(source);
        }
    }
    while (write_some(0)) {
    }
}

void RankOutput::finish() {
    for (Source &source : sources_) {
        // A process that left the job may hold the pipe open forever: read what is there without waiting for its end.
        size_t taken = 0;
        while (source.fd >= 0 && taken < kQueueBytes) {
            const size_t got = read_source(source);
            if (got == 0) {
                break;
            }
            taken += got;
        }
        if (!source.line.empty()) {
            push(source.target, source.prefix + source.line + "\n");
            source.line.clear();
        }
    }
    while (write_some(-1)) {
    }
}

size_t RankOutput::read_source(Source &source) {
    char bytes[16384];
    const ssize_t got = read(source.fd, bytes, sizeof bytes);
    if (got > 0) {
        source.line.append(bytes, static_cast<size_t>(got));
        take_lines(source);
        return static_cast<size_t>(got);
    }
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        close(source.fd);
        source.fd = -1;
    }
    return 0;
}

void RankOutput::take_lines(Source &source) {
    size_t begin = 0;
    while (begin < source.line.size()) {
        const size_t newline = source.line.find('\n', begin);
        const size_t end = std::min(newline, begin + kLongestLine);
        if (end >= source.line.size()) {  // its newline may be the next byte
            break;
        }
        const std::string line = source.line.substr(begin, end - begin);
        const auto number = static_cast<size_t>(&source - sources_.data()) / kDescriptors;
        if (source.target != STDOUT_FILENO || !hear_ || !hear_(number, line)) {
            push(source.target, source.prefix + line + "\n");
        }
        begin = end == newline ? end + 1 : end;
    }
    source.line.erase(0, begin);
}

void RankOutput::push(int target, std::string text) {
    if (lost_[static_cast<size_t>(target)]) {
        return;
    }
    queued_bytes_ += text.size();
    if (!queue_.empty() && queue_.back().target == target && queue_.back().text.size() < kWriteBytes) {
        queue_.back().text += text;
    } else {
        queue_.push_back({target, std::move(text)});
    }
}

// False if there is nothing to write, or no room for it within `timeout_ms`.
bool RankOutput::write_some(int timeout_ms) {
    if (queue_.empty()) {
        return false;
    }
    Text &first = queue_.front();
    pollfd writable = {first.target, POLLOUT, 0};
    if (poll(&writable, 1, timeout_ms) <= 0) {
        return timeout_ms < 0 && errno == EINTR;
    }
    const ssize_t wrote = write(first.target, first.text.data(), std::min(first.text.size(), kWriteBytes));
    if (wrote < 0) {
        if (errno == EAGAIN || errno == EINTR) {
            return timeout_ms < 0;
        }
        drop_target(first.target, errno);
        return true;
    }
    queued_bytes_ -= static_cast<size_t>(wrote);
    first.text.erase(0, static_cast<size_t>(wrote));
    if (first.text.empty()) {
        queue_.pop_front();
    }
    return true;
}

// Ranks get EPIPE from their next write if the reader has closed the pipe; for another reason they need not end.
void RankOutput::drop_target(int target, int error) {
    std::erase_if(queue_, [&](const Text &text) { return text.target == target; });
    queued_bytes_ = 0;
    for (const Text &text : queue_) {
        queued_bytes_ += text.text.size();
    }
    if (error != EPIPE) {
        lost_[static_cast<size_t>(target)] = true;
        warn(fmt::format("odc: cannot write the output: {}", strerror(error)));
        return;
    }
    for (Source &source : sources_) {
        if (source.target == target && source.fd >= 0) {
            close(source.fd);
            source.fd = -1;
        }
    }
}

}  // namespace odc_tool

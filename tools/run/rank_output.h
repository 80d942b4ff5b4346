// SPDX-License-Identifier: Apache-2.0
// Forwards what ranks print to this process's stdout and stderr: whole lines, each with its rank in front. Never blocks, so
// that a slow reader of the output delays the ranks, but not the signals for them.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace odc_tool {

class RankOutput {
public:
    static constexpr size_t kDescriptors = 2;  // used here per rank

    RankOutput() = default;
    RankOutput(const RankOutput &) = delete;
    RankOutput &operator=(const RankOutput &) = delete;
    ~RankOutput();

    // Makes the pipes of one rank, whose lines get the prefix; the caller passes the returned write ends to the rank and closes
    // them.
    std::array<int, 2> open(const std::string &prefix);
    // Calls `hear` with each line that ranks print to stdout, with the number of the open(); it returns whether it has consumed
    // the line.
    void listen(std::function<bool(size_t, const std::string &)> hear) { hear_ = std::move(hear); }
    // Queues a line of this process, for stderr and for stdout.
    void warn(const std::string &line);
    void report(const std::string &line);

    // Adds the descriptors for poll().
    void add_polls(std::vector<pollfd> &polls) const;
    // Reads and writes as much as possible without waiting.
    void pump();
    // After the last rank: forwards what is left in the pipes and the queue, also unterminated lines. Waits for the readers of
    // the output only.
    void finish();
    // Whether output was lost for another reason than a closed pipe.
    bool failed() const { return lost_[STDOUT_FILENO] || lost_[STDERR_FILENO]; }

private:
    struct Source {
        int fd;  // -1: closed
        int target;
        std::string prefix;
        std::string line;  // not yet terminated
    };
    struct Text {
        int target;
        std::string text;
    };

    bool has_room() const;
    size_t read_source(Source &source);
    void take_lines(Source &source);
    void push(int target, std::string text);
    bool write_some(int timeout_ms);
    void drop_target(int target, int error);

    std::vector<Source> sources_;
    std::function<bool(size_t, const std::string &)> hear_;
    std::deque<Text> queue_;  // one for both streams: a line is never split by one of the other stream
    size_t queued_bytes_ = 0;
    std::array<bool, 3> lost_ = {};  // by target: it cannot be written, so further output is dropped
};

}  // namespace odc_tool

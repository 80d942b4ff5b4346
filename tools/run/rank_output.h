// SPDX-License-Identifier: Apache-2.0
// What ranks print, on its way to our stdout and stderr: whole lines, each with its rank in front. Never blocks, so
// that a reader who pauses our output delays the ranks but not the signals meant for them.
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
    static constexpr size_t kDescriptors = 2;  // that a rank takes here

    RankOutput() = default;
    RankOutput(const RankOutput &) = delete;
    RankOutput &operator=(const RankOutput &) = delete;
    ~RankOutput();

    // Makes the pipes of one rank, whose lines get the prefix; the caller hands the returned write ends to the rank and
    // closes them.
    std::array<int, 2> open(const std::string &prefix);
    // Hands `hear` each line that ranks print to stdout, by the order of open(); it returns whether it has taken it.
    void listen(std::function<bool(size_t, const std::string &)> hear) { hear_ = std::move(hear); }
    // Queue a line of our own, for stderr and for stdout.
    void say(const std::string &line);
    void report(const std::string &line);

    // Adds what poll() should wait for.
    void add_polls(std::vector<pollfd> &polls) const;
    // Reads and writes what can be without waiting.
    void pump();
    // After the last rank: what is left in the pipes and the queue, unterminated lines too. Waits for our readers only.
    void finish();
    // Whether output was lost for another reason than a reader who left.
    bool failed() const { return lost_[STDOUT_FILENO] || lost_[STDERR_FILENO]; }

private:
    struct Source {
        int fd;  // -1: at its end
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
    std::deque<Text> queue_;  // one for both streams: a line is never cut by one of the other stream
    size_t queued_bytes_ = 0;
    std::array<bool, 3> lost_ = {};  // by target: it cannot be written, what comes is thrown away
};

}  // namespace odc_tool

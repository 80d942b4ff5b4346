// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>

#include "base/fd.h"
#include "base/settings.h"

namespace odc {

namespace {

constexpr std::array<const char *, ODC_LOG_TRACE> kLevelNames = {"error", "warn", "info", "debug", "trace"};
constexpr size_t kMostLines = 1000;  // that wait for a callback
constexpr int kRoomMs = 10;          // a line waits for room

const char *name_of(odc_log_level level) { return kLevelNames[static_cast<size_t>(level) - 1]; }

// "2026-01-31T23:59:59.123456Z"; not by gmtime_r, whose lock a forked child would keep.
std::string utc_now() {
    using namespace std::chrono;
    const auto now = floor<microseconds>(system_clock::now());
    const year_month_day date(floor<days>(now));
    const hh_mm_ss time(now - floor<days>(now));
    return formatted("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z", int{date.year()}, unsigned{date.month()},
                     unsigned{date.day()}, time.hours().count(), time.minutes().count(), time.seconds().count(),
                     time.subseconds().count());
}

// A broken pipe is no reason to end the process.
class BlockSigpipe {
public:
    BlockSigpipe() {
        sigset_t pending;
        sigpending(&pending);
        was_pending_ = sigismember(&pending, SIGPIPE) == 1;
        sigemptyset(&pipe_);
        sigaddset(&pipe_, SIGPIPE);
        pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
    }
    ~BlockSigpipe() {
        const timespec now{};
        while (!was_pending_ && sigtimedwait(&pipe_, nullptr, &now) < 0 && errno == EINTR) {
        }
        pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }
    BlockSigpipe(const BlockSigpipe &) = delete;
    BlockSigpipe &operator=(const BlockSigpipe &) = delete;

private:
    sigset_t pipe_;
    sigset_t before_;
    bool was_pending_;
};

// Standard error, as it can be written to without waiting: a pipe or a terminal through a description of its own, because
// O_NONBLOCK would also hold for the others that share the program's. Where that cannot be opened, as after a change of the user,
// the program's.
class StandardError {
public:
    StandardError() {
        struct stat status {};
        fstat(STDERR_FILENO, &status);
        is_socket_ = S_ISSOCK(status.st_mode);
        if (S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode)) {
            own_ = Fd(open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
            struct stat opened {};
            // Another thread may have replaced it; and opening a pseudo-terminal's master makes another one.
            if (own_.valid() && (fstat(own_.get(), &opened) != 0 || opened.st_dev != status.st_dev ||
                                 opened.st_ino != status.st_ino || opened.st_rdev != status.st_rdev)) {
                own_ = Fd();
            }
        }
    }
    bool has_room(int milliseconds) const {
        pollfd one{fd(), POLLOUT, 0};
        return poll(&one, 1, milliseconds) > 0;
    }
    ssize_t write(const char *text, size_t bytes) const {
        return is_socket_ ? send(STDERR_FILENO, text, bytes, MSG_DONTWAIT) : ::write(fd(), text, bytes);
    }

private:
    int fd() const { return own_.valid() ? own_.get() : STDERR_FILENO; }

    Fd own_;
    bool is_socket_ = false;
};

// As much as there is room for within `milliseconds`. A pipe that takes anything takes PIPE_BUF bytes.
bool write_all(std::string_view text, int milliseconds) {
    const BlockSigpipe here;
    const StandardError error;
    while (!text.empty()) {
        if (!error.has_room(milliseconds)) {
            return false;
        }
        const ssize_t written = error.write(text.data(), std::min<size_t>(text.size(), PIPE_BUF));
        if (written < 0 && errno != EINTR) {
            return false;
        }
        text.remove_prefix(static_cast<size_t>(std::max<ssize_t>(written, 0)));
    }
    return true;
}

}  // namespace

odc_log_level log_level_of(int32_t given) {
    if (given < 0 || given > ODC_LOG_TRACE) {
        fail(ODC_ERROR_ARGUMENT, "odc_init: log_level {} is no odc_log_level; they are 1 to {}, and 0 is ODC_LOG's",
             given, int{ODC_LOG_TRACE});
    }
    if (given != 0) {
        return static_cast<odc_log_level>(given);
    }
    const std::string text = setting(Setting::kLog);
    const auto at = std::find(kLevelNames.begin(), kLevelNames.end(), text);
    if (at == kLevelNames.end()) {
        fail(ODC_ERROR_ARGUMENT, "{}=\"{}\" is wrong: it must be error, warn, info, debug or trace",
             setting_row(Setting::kLog).name, text);
    }
    return static_cast<odc_log_level>(at - kLevelNames.begin() + 1);
}

void Log::set_process(const std::string &host, const std::string &group) {
    process_ = formatted(" host={} pid={}", host, getpid());
    group_ = group.empty() ? "" : formatted(" group={}", group);
}

void Log::set_rank(int rank, int size) { rank_ = formatted(" rank={}/{}", rank, size); }

std::string Log::prefix(odc_log_level level) const {
    // Before the rank is known there is no minibatch.
    const std::string minibatch =
        rank_.empty() ? "" : formatted(" minibatch={}", minibatch_.load(std::memory_order_relaxed));
    return formatted("{} odc {}{}{}{}{}: ", utc_now(), name_of(level), rank_, process_, minibatch, group_);
}

void Log::put(odc_log_level level, const std::string &text) {
    std::string line = prefix(level) + text;
    // Control characters in callers' texts become spaces, so that a record stays one line.
    std::replace_if(
        line.begin(), line.end(), [](unsigned char c) { return c < ' '; }, ' ');
    if (sink_ == nullptr) {
        return print(std::move(line));
    }
    const std::lock_guard lock(mutex_);
    if (lines_.size() < kMostLines) {
        lines_.push_back({level, std::move(line)});
    } else {
        ++dropped_;
    }
    waiting_.store(true, std::memory_order_relaxed);
}

// Waits for room only after a line that found some, so that a full pipe costs a thread kRoomMs once.
void Log::print(std::string line) {
    const uint64_t before = unprinted_.exchange(0);
    if (before > 0) {
        line = formatted("{}{} lines are lost: standard error had no room\n{}", prefix(ODC_LOG_WARN), before, line);
    }
    line += '\n';
    if (!write_all(line, before == 0 ? kRoomMs : 0)) {
        unprinted_.fetch_add(before + 1);
    }
}

void Log::hand_over() {
    std::vector<Line> lines;
    {
        const std::lock_guard lock(mutex_);
        if (dropped_ > 0) {
            lines_.push_back({ODC_LOG_WARN, formatted("{}{} lines are lost: the callback could not be called in time",
                                                      prefix(ODC_LOG_WARN), dropped_)});
            dropped_ = 0;
        }
        lines.swap(lines_);
        waiting_.store(false, std::memory_order_relaxed);
    }
    size_t begun = 0;
    struct CountRest {  // where the callback ends its thread
        ~CountRest() {
            const std::lock_guard lock(log.mutex_);
            log.dropped_ += lines.size() - begun;
        }
        Log &log;
        const std::vector<Line> &lines;
        const size_t &begun;
    };
    const CountRest rest{*this, lines, begun};
    while (begun < lines.size()) {
        const Line &line = lines[begun++];
        sink_(arg_, line.level, line.text.c_str());
    }
}

}  // namespace odc

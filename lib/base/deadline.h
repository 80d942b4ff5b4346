// SPDX-License-Identifier: Apache-2.0
// A wait's deadline, the caller's `interrupted` callback, and the log that says what it waits for.
#pragma once

#include "base/error.h"
#include "base/log.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace odc {

inline int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

// `remaining_ms` may come from another rank or from a config, so it may be anything.
inline int64_t deadline_after(int64_t remaining_ms) {
    return now_ns() + std::clamp<int64_t>(remaining_ms, 0, int64_t{1} << 40) * 1'000'000;
}

// The same clock as it stood at the last timer tick, some milliseconds ago: a seventh of the cost, for times that errors tell.
inline int64_t tick_ns() {
    timespec at{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &at);
    return at.tv_sec * int64_t{1'000'000'000} + at.tv_nsec;
}

class Deadline {
public:
    Deadline(int64_t timeout_ms, odc_interrupted_fn interrupted, void *arg, Log *log = nullptr)
        : begin_ns_(now_ns()), timeout_ms_(timeout_ms), interrupted_(interrupted), arg_(arg), log_(log) {}

    bool over() const { return remaining_ms() <= 0; }
    int64_t remaining_ms() const { return timeout_ms_ - (now_ns() - begin_ns_) / 1'000'000; }
    int64_t begin_ns() const { return begin_ns_; }
    double waited_s() const { return static_cast<double>(now_ns() - begin_ns_) * 1e-9; }
    // How long to sleep in poll() or a futex before checking again.
    int slice_ms() const { return static_cast<int>(std::clamp<int64_t>(remaining_ms(), 0, 20)); }

    // Throws ODC_ERROR_INTERRUPTED when the caller wants to stop.
    void check_interrupted(const char *call) const {
        if (wants_to_stop()) {
            fail(ODC_ERROR_INTERRUPTED, "{} was interrupted by the caller's `interrupted` callback", call);
        }
    }

    // The same without throwing, for callers that already have an error to report.
    bool wants_to_stop() const {
        if (log_ != nullptr) {
            log_->deliver();
        }
        return interrupted_ != nullptr && interrupted_(arg_) != 0;
    }

    template <class... Values>
    void debug(fmt::format_string<const Values &...> form, const Values &...values) const {
        if (log_ != nullptr) {
            log_->debug(form, values...);
        }
    }
    template <class... Values>
    void trace(fmt::format_string<const Values &...> form, const Values &...values) const {
        if (log_ != nullptr) {
            log_->trace(form, values...);
        }
    }
    // Logs `text()`, which says what is waited for, if the wait has taken long; called by one thread.
    template <class Text>
    void log_if_long(const Text &text) const {
        if (log_ != nullptr) {
            long_wait_.look(*log_, now_ns() - begin_ns_, text);
        }
    }
    // Throws `status` with that text when the deadline is over; logs it if the wait has taken long.
    template <class Text>
    void check(odc_status status, const Text &text) const {
        if (over()) {
            throw Error(status, text());
        }
        log_if_long(text);
    }

private:
    int64_t begin_ns_;
    int64_t timeout_ms_;
    odc_interrupted_fn interrupted_;
    void *arg_;
    Log *log_;
    mutable LongWait long_wait_;
};

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// The log of a job, as one rank writes it. A line that is off costs a comparison; its text is made only if it is on. Without a
// callback lines go to standard error at once, from any thread; one for which there is no room is lost and counted, because
// a thread that waits for a reader keeps other ranks waiting. With one they wait until deliver(), which only the caller's
// threads call, where `interrupted` is asked and before a call returns: a callback can neither stop a thread of the
// library nor end the caller's thread where something is half done.
#pragma once

#include "base/error.h"

#include <odc/odc.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace odc {

// `given`: an odc_log_level, 0: ODC_LOG's. Throws ODC_ERROR_ARGUMENT for what is none.
odc_log_level log_level_of(int32_t given);

class Log {
public:
    explicit Log(odc_log_level level, odc_log_fn sink = nullptr, void *arg = nullptr)
        : level_(level), sink_(sink), arg_(arg) {}
    Log(const Log &) = delete;
    Log &operator=(const Log &) = delete;

    // Name the writer in each line from now on, the rank once it is known. Called before the library starts a thread.
    void set_process(const std::string &host, const std::string &group);
    void set_rank(int rank, int size);
    void set_minibatch(uint64_t minibatch) { minibatch_.store(minibatch, std::memory_order_relaxed); }

    uint64_t minibatch() const { return minibatch_.load(std::memory_order_relaxed); }

    bool on(odc_log_level level) const { return level <= level_; }
    template <class... Values>
    void error(fmt::format_string<const Values &...> form, const Values &...values) {
        line(ODC_LOG_ERROR, form, values...);
    }
    template <class... Values>
    void warn(fmt::format_string<const Values &...> form, const Values &...values) {
        line(ODC_LOG_WARN, form, values...);
    }
    template <class... Values>
    void info(fmt::format_string<const Values &...> form, const Values &...values) {
        line(ODC_LOG_INFO, form, values...);
    }
    template <class... Values>
    void debug(fmt::format_string<const Values &...> form, const Values &...values) {
        line(ODC_LOG_DEBUG, form, values...);
    }
    template <class... Values>
    void trace(fmt::format_string<const Values &...> form, const Values &...values) {
        line(ODC_LOG_TRACE, form, values...);
    }
    template <class... Values>
    void line(odc_log_level level, fmt::format_string<const Values &...> form, const Values &...values) {
        if (on(level)) [[unlikely]] {
            write(level, [&] { return formatted(form, values...); });
        }
    }

    // Whether lines wait for the callback.
    bool has_lines() const { return waiting_.load(std::memory_order_relaxed); }
    // Calls the callback with those lines.
    void deliver() {
        if (has_lines()) [[unlikely]] {
            hand_over();
        }
    }

private:
    struct Line {
        odc_log_level level;
        std::string text;
    };

    // Without memory for a line, the line is lost and the caller's work goes on.
    template <class Text>
    [[gnu::noinline, gnu::cold]] void write(odc_log_level level, const Text &text) noexcept {
        try {
            put(level, text());
        } catch (const std::exception &) {
        }
    }
    void put(odc_log_level level, const std::string &text);
    void print(std::string line);
    void hand_over();
    std::string prefix(odc_log_level level) const;

    const odc_log_level level_;
    const odc_log_fn sink_;
    void *const arg_;
    std::string rank_;     // " rank=3/8"; empty: not known yet
    std::string process_;  // " host=a pid=42"
    std::string group_;
    std::atomic<uint64_t> minibatch_{0};

    std::mutex mutex_;
    std::atomic<bool> waiting_{false};
    std::vector<Line> lines_;
    uint64_t dropped_ = 0;
    std::atomic<uint64_t> unprinted_{0};
};

// When a wait has lasted so long that it says what it waits for: after 2 s, 4 s, 8 s and so on; from 30 s on as a warning.
class LongWait {
public:
    template <class Text>
    void look(Log &log, int64_t waited_ns, const Text &text) {
        if (waited_ns >= next_ns_) {
            while (next_ns_ <= waited_ns) {
                next_ns_ *= 2;
            }
            const odc_log_level level = waited_ns >= kWarnNs ? ODC_LOG_WARN : ODC_LOG_INFO;
            if (log.on(level)) {
                log.line(level, "{}", cut(text(), kMostBytes));
            }
        }
    }

private:
    static constexpr int64_t kFirstNs = 2'000'000'000;
    static constexpr int64_t kWarnNs = 30'000'000'000;
    static constexpr size_t kMostBytes = 2048;  // of a text that may name every rank

    int64_t next_ns_ = kFirstNs;
};

}  // namespace odc

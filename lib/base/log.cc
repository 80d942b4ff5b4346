// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "base/settings.h"

namespace odc {

namespace {

constexpr std::array<const char *, ODC_LOG_TRACE> kLevelNames = {"error", "warn", "info", "debug", "trace"};
constexpr size_t kMostLines = 1000;  // that wait for a callback

const char *name_of(odc_log_level level) { return kLevelNames[static_cast<size_t>(level) - 1]; }

// "2026-01-31T23:59:59.123456Z"
std::string utc_now() {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    tm utc{};
    gmtime_r(&now.tv_sec, &utc);
    char text[64];
    const size_t length = std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &utc);
    std::snprintf(text + length, sizeof(text) - length, ".%06ldZ", now.tv_nsec / 1000);
    return text;
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

void Log::set_rank(int rank, int size, const std::string &host, const std::string &group) {
    who_ = formatted(" rank={}/{} host={} pid={}", rank, size, host, getpid());
    group_ = group.empty() ? "" : formatted(" group={}", group);
}

std::string Log::prefix(odc_log_level level) const {
    return formatted("{} odc {}{} minibatch={}{}: ", utc_now(), name_of(level), who_,
                     minibatch_.load(std::memory_order_relaxed), group_);
}

void Log::put(odc_log_level level, const std::string &text) {
    std::string line = prefix(level) + text;
    // A line is one, whatever texts of callers are in it.
    std::replace_if(
        line.begin(), line.end(), [](unsigned char c) { return c < ' '; }, ' ');
    if (sink_ == nullptr) {
        line += '\n';
        [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
        return;
    }
    const std::lock_guard lock(mutex_);
    if (lines_.size() < kMostLines) {
        lines_.push_back({level, std::move(line)});
    } else {
        ++dropped_;
    }
    waiting_.store(true, std::memory_order_relaxed);
}

void Log::hand_over() {
    std::vector<Line> lines;
    {
        const std::lock_guard lock(mutex_);
        lines.swap(lines_);
        if (dropped_ > 0) {
            lines.push_back({ODC_LOG_WARN, formatted("{}{} lines are lost: no call came to hand them to the callback",
                                                     prefix(ODC_LOG_WARN), dropped_)});
            dropped_ = 0;
        }
        waiting_.store(false, std::memory_order_relaxed);
    }
    for (const Line &line : lines) {
        sink_(arg_, line.level, line.text.c_str());
    }
}

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
#include "base/event_loop.h"

#include <algorithm>
#include <utility>

namespace odc {

namespace {

constexpr int64_t kSliceNs = 20'000'000;  // between two questions to the caller
constexpr size_t kNever = SIZE_MAX;

}  // namespace

// The kernel counts an entry of -1, too, and refuses more entries than the process may have descriptors.
size_t EventLoop::watch(int fd, short events) {
    if (fd < 0) {
        return kNever;
    }
    next_.push_back({fd, events, 0});
    return next_.size() - 1;
}

void EventLoop::wait(int64_t until_ns) {
    seen_.clear();
    std::swap(seen_, next_);
    const int64_t sleep_ns = std::clamp<int64_t>(until_ns - now_ns(), 0, kSliceNs);
    poll(seen_.data(), seen_.size(), static_cast<int>((sleep_ns + 999'999) / 1'000'000));
    deadline_.check_interrupted(call_);
}

void EventLoop::sleep(int64_t until_ns) {
    do {
        next_.clear();
        wait(until_ns);
    } while (now_ns() < until_ns);
}

int64_t Backoff::next_ns() { return std::exchange(next_ns_, std::min(2 * next_ns_, last_ns_)); }

}  // namespace odc

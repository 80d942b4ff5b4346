// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/command_queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <utility>

#include "base/error.h"

namespace odc {

CommandQueue::CommandQueue() : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!wake_.valid()) {
        fail_errno("eventfd");
    }
}

bool CommandQueue::submit(Command command) {
    {
        const std::lock_guard lock(mutex_);
        if (ended_) {
            return false;
        }
        commands_.push_back(std::move(command));
    }
    if (sleeping_.exchange(false)) {
        const uint64_t one = 1;
        [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
    }
    return true;
}

bool CommandQueue::call(const std::function<void()> &body) {
    std::mutex mutex;
    std::condition_variable answered;
    bool done = false;
    std::exception_ptr error;
    const bool taken = submit([&] {
        try {
            body();
        } catch (...) {
            error = std::current_exception();
        }
        const std::lock_guard lock(mutex);
        done = true;
        answered.notify_one();
    });
    if (!taken) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return released_; });
        return false;
    }
    std::unique_lock lock(mutex);
    answered.wait(lock, [&] { return done; });
    if (error) {
        std::rethrow_exception(error);
    }
    return true;
}

void CommandQueue::wait_for(int64_t ns, const std::function<bool()> &done) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::nanoseconds(ns), [&] { return done() || ended_; });
}

bool CommandQueue::take() {
    const std::lock_guard lock(mutex_);
    std::move(commands_.begin(), commands_.end(), std::back_inserter(taken_));
    commands_.clear();
    return !taken_.empty();
}

void CommandQueue::run() {
    while (!taken_.empty()) {
        const Command command = std::move(taken_.front());
        taken_.pop_front();
        command();
    }
}

void CommandQueue::update(const std::function<void()> &change) {
    const std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
}

bool CommandQueue::begin_sleep() {
    sleeping_.store(true);
    const std::lock_guard lock(mutex_);
    if (!commands_.empty()) {
        sleeping_.store(false);
    }
    return commands_.empty();
}

void CommandQueue::end_sleep(short revents) {
    sleeping_.store(false);
    if (revents != 0) {
        uint64_t count = 0;
        [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof(count));
    }
}

void CommandQueue::end() {
    update([this] { ended_ = true; });
    take();
    for (bool going = true; going;) {
        try {
            run();
            going = false;
        } catch (const std::exception &) {
            // The error that ended the thread has been reported.
        }
    }
}

void CommandQueue::release() {
    update([this] { released_ = true; });
}

}  // namespace odc

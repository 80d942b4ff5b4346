// SPDX-License-Identifier: Apache-2.0
#include "streams.h"

#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <thread>

#include "capture.h"
#include "functions.h"
#include "handles.h"
#include "settings.h"

namespace fake_cuda {

namespace {

uint64_t next_number() {
    static std::atomic<uint64_t> next{0};
    return ++next;
}

// A thread's own default streams, which end with it.
struct PerThread {
    std::vector<std::shared_ptr<StreamHandle>> streams;

    std::shared_ptr<StreamHandle> of(ContextHandle &context) {
        for (const auto &stream : streams) {
            if (&stream->context == &context) {
                return stream;
            }
        }
        streams.push_back(make_stream(context, Waits::ForLegacy));
        return streams.back();
    }
    ~PerThread() {
        for (const auto &stream : streams) {
            stream->finish();
        }
    }
};

std::shared_ptr<StreamHandle> legacy_of(ContextHandle &context) {
    {
        const std::shared_lock lock(context.streams_mutex);
        if (context.legacy != nullptr) {
            return context.legacy;
        }
    }
    const std::unique_lock lock(context.streams_mutex);
    if (context.legacy == nullptr) {
        context.legacy = std::make_shared<StreamHandle>(context, Waits::ForNobody);
    }
    return context.legacy;
}

// The points in other streams of the context that an operation now enqueued in `stream` must wait for.
std::vector<Point> implied(StreamHandle &stream) {
    std::vector<Point> points;
    if (is_legacy(stream)) {
        const std::shared_lock lock(stream.context.streams_mutex);
        for (const auto &other : stream.context.blocking) {
            points.push_back(other->last());
        }
    } else if (stream.waits == Waits::ForLegacy) {
        points.push_back(legacy_of(stream.context)->last());
    }
    points.erase(std::remove_if(points.begin(), points.end(), [](const Point &point) { return point.reached(); }),
                 points.end());
    return points;
}

}  // namespace

Pace::Pace(uint64_t number) : random_(seed() + number * 0x9e3779b97f4a7c15U) {}

void Pace::pause() {
    static const uint64_t longest = number_setting("FAKE_CUDA_DELAY_US", 200);
    if (const uint64_t chosen = random_(); longest > 0 && chosen % 4 != 0) {
        std::this_thread::sleep_for(std::chrono::microseconds((chosen >> 2) % (longest + 1)));
    }
}

uint64_t Pace::cut(uint64_t count) { return count < 2 || random_() % 2 == 0 ? 0 : random_() % count; }

bool Point::reached() const { return stream == nullptr || stream->reached(number); }

void Point::wait() const {
    if (stream != nullptr) {
        stream->wait(number);
    }
}

std::shared_ptr<StreamHandle> make_stream(ContextHandle &context, Waits waits) {
    auto stream = std::make_shared<StreamHandle>(context, waits);
    if (waits == Waits::ForLegacy) {
        const std::unique_lock lock(context.streams_mutex);
        context.blocking.push_back(stream);
    }
    return stream;
}

bool is_legacy(StreamHandle &stream) {
    const std::shared_lock lock(stream.context.streams_mutex);
    return stream.context.legacy.get() == &stream;
}

Result find_any_stream(Stream handle, std::shared_ptr<StreamHandle> &stream) {
    if (handle != nullptr && handle != kLegacyStream && handle != kPerThreadStream) {
        stream = handles<StreamHandle>().find(handle);
        return stream == nullptr ? Result::InvalidHandle : Result::Success;
    }
    const Context context = current_context();
    if (context == nullptr) {
        return Result::InvalidContext;
    }
    thread_local PerThread own;
    stream = handle == kPerThreadStream ? own.of(*context) : legacy_of(*context);
    return Result::Success;
}

Result find_stream(Stream handle, std::shared_ptr<StreamHandle> &stream) {
    const Result result = find_any_stream(handle, stream);
    return result == Result::Success ? stream->context.failure.load() : result;
}

Result submit(StreamHandle &stream, Work work, std::vector<Point> others, Point *point) {
    if (const Result result = check_capture(stream); result != Result::Success) {
        return result;
    }
    if (stream.capture == CaptureStatus::Active) {
        return Result::Success;  // captured
    }
    for (Point &before : implied(stream)) {
        others.push_back(std::move(before));
    }
    const Point reached = stream.enqueue(std::move(others), std::move(work));
    if (point != nullptr) {
        *point = reached;
    }
    return Result::Success;
}

Result cuStreamCreate(Stream *stream, unsigned flags) {
    if (stream == nullptr || (flags & ~kStreamNonBlocking) != 0) {
        return Result::InvalidValue;
    }
    const Waits waits = flags == kStreamNonBlocking ? Waits::ForNobody : Waits::ForLegacy;
    *stream = handles<StreamHandle>().add(make_stream(*current_context(), waits));
    return Result::Success;
}

Result cuStreamDestroy(Stream handle) {
    const auto stream = handles<StreamHandle>().take(handle);
    if (stream == nullptr) {
        return Result::InvalidHandle;
    }
    stream->finish();
    return Result::Success;
}

Result cuStreamQuery(Stream handle) {
    std::shared_ptr<StreamHandle> stream;
    if (const Result result = find_stream(handle, stream); result != Result::Success) {
        return result;
    }
    if (const Result result = check_query(*stream); result != Result::Success) {
        return result;
    }
    if (!stream->last().reached()) {
        return Result::NotReady;
    }
    return stream->context.failure;  // completed work may have failed
}

Result cuStreamGetCtx(Stream handle, Context *context) {
    std::shared_ptr<StreamHandle> stream;
    const Result result = find_stream(handle, stream);
    if (result == Result::Success) {
        *context = &stream->context;
    }
    return result;
}

}  // namespace fake_cuda

namespace odc::cuda {

using fake_cuda::Point;

Point StreamHandle::last() { return {shared_from_this(), enqueued_.load(std::memory_order_relaxed)}; }

Point StreamHandle::enqueue(std::vector<Point> others, fake_cuda::Work work) {
    const std::lock_guard lock(mutex_);
    if (!has_thread_) {
        start_thread();
        has_thread_ = true;
    }
    queue_.push_back({std::move(others), std::move(work)});
    const uint64_t number = enqueued_.fetch_add(1, std::memory_order_relaxed) + 1;
    changed_.notify_all();
    return {shared_from_this(), number};
}

// Signals are for the program's threads.
void StreamHandle::start_thread() {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([self = shared_from_this()] { self->run(); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void StreamHandle::run() {
    fake_cuda::Pace pace(fake_cuda::next_number());
    for (Operation operation; next(operation);) {
        carry_out(operation, pace);
        operation = {};  // free what it holds before anyone sees it complete
        const std::lock_guard lock(mutex_);
        done_.fetch_add(1, std::memory_order_release);
        changed_.notify_all();
    }
    leave_context();
}

bool StreamHandle::next(Operation &operation) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !queue_.empty() || finished_; });
    if (queue_.empty()) {
        return false;
    }
    operation = std::move(queue_.front());
    queue_.pop_front();
    return true;
}

void StreamHandle::carry_out(Operation &operation, fake_cuda::Pace &pace) {
    for (const Point &point : operation.after) {
        point.wait();
    }
    if (context.failure != Result::Success) {
        return;
    }
    pace.pause();
    if (const Result result = operation.work(pace); result != Result::Success) {
        fake_cuda::fail_context(context, result);
    }
}

void StreamHandle::wait(uint64_t number) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, number] { return reached(number); });
}

bool StreamHandle::wait_until(uint64_t number, fake_cuda::Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline, [this, number] { return reached(number); });
}

void StreamHandle::finish() {
    bool idle = false;
    {
        const std::lock_guard lock(mutex_);
        finished_ = true;
        idle = !has_thread_;
        changed_.notify_all();
    }
    if (idle) {
        leave_context();
    }
}

// Only now: until here the legacy stream waits for it.
void StreamHandle::leave_context() {
    const std::unique_lock lock(context.streams_mutex);
    auto &all = context.blocking;
    all.erase(std::remove_if(all.begin(), all.end(), [this](const auto &one) { return one.get() == this; }), all.end());
}

}  // namespace odc::cuda

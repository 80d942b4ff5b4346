// SPDX-License-Identifier: Apache-2.0
#include "capture.h"

#include <algorithm>
#include <thread>

#include "functions.h"

namespace fake_cuda {

namespace {

struct Capture {
    std::shared_ptr<StreamHandle> stream;
    std::thread::id by;
};

struct Captures {
    std::atomic<size_t> count{0};  // a shortcut without a lock, which would order threads
    std::mutex mutex;
    std::vector<Capture> list;
};

Captures &captures() {
    static auto *one = new Captures;
    return *one;
}

thread_local CaptureMode mode = CaptureMode::Global;

// Calls `visit` for the captures for which `concerned` returns true. Returns whether there are any.
template <class Concerned, class Visit>
bool visit_captures(Concerned concerned, Visit visit) {
    Captures &all = captures();
    if (all.count.load(std::memory_order_relaxed) == 0) {
        return false;
    }
    const std::lock_guard lock(all.mutex);
    bool found = false;
    for (const Capture &capture : all.list) {
        if (concerned(capture)) {
            found = true;
            visit(capture);
        }
    }
    return found;
}

void invalidate(const Capture &capture) { capture.stream->capture = CaptureStatus::Invalidated; }

// The captures that the context's legacy stream would have to wait for.
auto blocking_in(const StreamHandle &legacy) {
    return [&legacy](const Capture &capture) {
        return &capture.stream->context == &legacy.context && capture.stream->waits == Waits::ForLegacy;
    };
}

}  // namespace

Result check_unsafe_call() {
    const auto forbids = [](const Capture &capture) {
        return mode == CaptureMode::Global || capture.by == std::this_thread::get_id();
    };
    return mode != CaptureMode::Relaxed && visit_captures(forbids, invalidate) ? kCaptureUnsupported : Result::Success;
}

Result check_capture(StreamHandle &stream) {
    if (stream.capture == CaptureStatus::Invalidated) {
        return kCaptureInvalidated;
    }
    return is_legacy(stream) && visit_captures(blocking_in(stream), invalidate) ? kCaptureImplicit : Result::Success;
}

Result check_query(StreamHandle &stream) {
    if (stream.capture == CaptureStatus::None) {
        return Result::Success;
    }
    stream.capture = CaptureStatus::Invalidated;
    return kCaptureUnsupported;
}

Result begin_capture(std::shared_ptr<StreamHandle> stream) {
    if (is_legacy(*stream)) {
        return kCaptureUnsupported;
    }
    CaptureStatus none = CaptureStatus::None;
    if (!stream->capture.compare_exchange_strong(none, CaptureStatus::Active)) {
        return Result::InvalidValue;
    }
    Captures &all = captures();
    const std::lock_guard lock(all.mutex);
    all.list.push_back({std::move(stream), std::this_thread::get_id()});
    ++all.count;
    return Result::Success;
}

Result end_capture(StreamHandle &stream) {
    Captures &all = captures();
    const std::lock_guard lock(all.mutex);
    const auto found = std::find_if(all.list.begin(), all.list.end(),
                                    [&stream](const Capture &capture) { return capture.stream.get() == &stream; });
    if (found == all.list.end()) {
        return kCaptureUnmatched;
    }
    all.list.erase(found);
    --all.count;
    return stream.capture.exchange(CaptureStatus::None) == CaptureStatus::Invalidated ? kCaptureInvalidated
                                                                                      : Result::Success;
}

Result cuStreamIsCapturing(Stream handle, CaptureStatus *status) {
    std::shared_ptr<StreamHandle> stream;
    if (const Result result = find_stream(handle, stream); result != Result::Success) {
        return result;
    }
    if (is_legacy(*stream) && visit_captures(blocking_in(*stream), [](const Capture & /*capture*/) {})) {
        return kCaptureImplicit;
    }
    *status = stream->capture;
    return Result::Success;
}

Result cuThreadExchangeStreamCaptureMode(CaptureMode *wanted) {
    std::swap(mode, *wanted);
    return Result::Success;
}

}  // namespace fake_cuda

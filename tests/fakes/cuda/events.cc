// SPDX-License-Identifier: Apache-2.0
#include "events.h"

#include "functions.h"
#include "handles.h"

namespace fake_cuda {

namespace {

Result nothing(Pace & /*pace*/) { return Result::Success; }

}  // namespace

Result cuEventCreate(Event *event, unsigned flags) {
    if (event == nullptr || (flags & ~kEventDisableTiming) != 0) {
        return Result::InvalidValue;
    }
    *event = handles<EventHandle>().add(std::make_shared<EventHandle>(*current_context()));
    return Result::Success;
}

Result cuEventDestroy(Event handle) {
    return handles<EventHandle>().take(handle) == nullptr ? Result::InvalidHandle : Result::Success;
}

Result cuEventRecord(Event handle, Stream stream_handle) {
    const auto event = handles<EventHandle>().find(handle);
    std::shared_ptr<StreamHandle> stream;
    if (const Result result = find_stream(stream_handle, stream); result != Result::Success) {
        return result;
    }
    if (event == nullptr || &event->context != &stream->context) {
        return Result::InvalidHandle;
    }
    const std::lock_guard lock(event->mutex);
    Point point;
    const Result result = submit(*stream, nothing, {}, &point);
    if (result == Result::Success) {
        event->captured = point.stream == nullptr;
        event->point = std::move(point);
    }
    return result;
}

Result cuEventQuery(Event handle) {
    const auto event = handles<EventHandle>().find(handle);
    if (event == nullptr) {
        return Result::InvalidHandle;
    }
    const std::lock_guard lock(event->mutex);
    if (event->captured) {
        return kCaptureUnsupported;
    }
    if (event->context.failure == Result::Success && !event->point.reached()) {
        return Result::NotReady;
    }
    return event->context.failure;
}

Result cuStreamWaitEvent(Stream stream_handle, Event handle, unsigned flags) {
    const auto event = handles<EventHandle>().find(handle);
    std::shared_ptr<StreamHandle> stream;
    if (const Result result = find_stream(stream_handle, stream); result != Result::Success) {
        return result;
    }
    if (event == nullptr || flags != 0) {
        return event == nullptr ? Result::InvalidHandle : Result::InvalidValue;
    }
    const std::lock_guard lock(event->mutex);
    return event->point.stream == nullptr ? Result::Success : submit(*stream, nothing, {event->point});
}

}  // namespace fake_cuda

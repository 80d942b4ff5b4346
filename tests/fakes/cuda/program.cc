// SPDX-License-Identifier: Apache-2.0
// The functions of fake_cuda.h: the user's program, faults, counts.
#include <sys/mman.h>

#include <cstring>
#include <mutex>
#include <thread>

#include "calls.h"
#include "capture.h"
#include "contexts.h"
#include "enqueued.h"
#include "events.h"
#include "fake_cuda.h"
#include "functions.h"
#include "handles.h"
#include "memory.h"
#include "modules.h"

namespace {

using namespace fake_cuda;

constexpr auto kLongestWait = std::chrono::seconds(60);

// The primary context of a device, retained for good.
Result use(int device, Context &context) {
    if (const Result result = cuInit(0); result != Result::Success) {
        return result;
    }
    if (!is_device(device)) {
        return Result::InvalidDevice;
    }
    context = &context_of(device);
    context->used = true;
    return context->failure;
}

Result find_any(void *handle, std::shared_ptr<StreamHandle> &stream) {
    if (const Result result = cuInit(0); result != Result::Success) {
        return result;
    }
    if (current_context() == nullptr) {
        fake_cuda_set_device(0);
    }
    return find_any_stream(static_cast<Stream>(handle), stream);
}

int enqueue(void *handle, Work work) {
    std::shared_ptr<StreamHandle> stream;
    Result result = find_any(handle, stream);
    if (result == Result::Success) {
        result = submit(*stream, std::move(work));
    }
    return static_cast<int>(result);
}

struct Hangs {
    std::mutex mutex;
    std::condition_variable ended;
    std::atomic<uint64_t> generation{0};
};

Hangs &hangs() {
    static auto *one = new Hangs;
    return *one;
}

size_t rounded(size_t bytes) { return (bytes + kGranularity - 1) / kGranularity * kGranularity; }

}  // namespace

int fake_cuda_set_device(int device) {
    Context context = nullptr;
    const Result result = use(device, context);
    if (context != nullptr) {
        make_current(context);
    }
    return static_cast<int>(result);
}

unsigned long long fake_cuda_alloc(int device, size_t bytes) {
    Context context = nullptr;
    if (use(device, context) != Result::Success || bytes == 0) {
        return 0;
    }
    auto physical = make_physical(rounded(bytes), device);
    const Address address = physical == nullptr ? 0 : reserve(rounded(bytes), kGranularity);
    if (address == 0) {
        return 0;
    }
    Mapping mapping{bytes, std::move(physical), Mapping::Of::Allocation, {}};
    mapping.access[static_cast<size_t>(device)] = Access::ReadWrite;
    const std::unique_lock lock(memories().mutex);
    memories().allocations[address] = rounded(bytes);
    memories().mappings[address] = std::move(mapping);
    return address;
}

int fake_cuda_free(unsigned long long address) {
    const std::unique_lock lock(memories().mutex);
    const auto found = memories().allocations.find(address);
    if (found == memories().allocations.end()) {
        return static_cast<int>(Result::InvalidValue);
    }
    munmap(reinterpret_cast<void *>(address), found->second);
    memories().mappings.erase(address);
    memories().allocations.erase(found);
    return 0;
}

int fake_cuda_write(unsigned long long address, const void *from, size_t bytes) {
    const std::shared_lock lock(memories().mutex);
    const auto found = all_pieces(address, bytes);
    const char *next = static_cast<const char *>(from);
    for (const Piece &piece : found) {
        std::memcpy(piece.at, next, piece.bytes);
        next += piece.bytes;
    }
    return static_cast<int>(found.empty() && bytes > 0 ? Result::InvalidValue : Result::Success);
}

int fake_cuda_read(void *to, unsigned long long address, size_t bytes) {
    const std::shared_lock lock(memories().mutex);
    const auto found = all_pieces(address, bytes);
    char *next = static_cast<char *>(to);
    for (const Piece &piece : found) {
        std::memcpy(next, piece.at, piece.bytes);
        next += piece.bytes;
    }
    return static_cast<int>(found.empty() && bytes > 0 ? Result::InvalidValue : Result::Success);
}

void *fake_cuda_stream_create(int device, unsigned flags) {
    Context context = nullptr;
    if (use(device, context) != Result::Success) {
        return nullptr;
    }
    const Waits waits = flags == kStreamNonBlocking ? Waits::ForNobody : Waits::ForLegacy;
    return handles<StreamHandle>().add(make_stream(*context, waits));
}

int fake_cuda_stream_destroy(void *stream) { return static_cast<int>(cuStreamDestroy(static_cast<Stream>(stream))); }

int fake_cuda_stream_wait(void *handle) {
    std::shared_ptr<StreamHandle> stream;
    if (const Result result = find_any(handle, stream); result != Result::Success) {
        return static_cast<int>(result);
    }
    if (!stream->wait_until(stream->last().number, Clock::now() + kLongestWait)) {
        return static_cast<int>(Result::NotReady);
    }
    return static_cast<int>(stream->context.failure.load());
}

int fake_cuda_launch_delay(void *stream, unsigned microseconds) {
    return enqueue(stream, [microseconds](Pace & /*pace*/) {
        std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
        return Result::Success;
    });
}

int fake_cuda_begin_capture(void *handle) {
    std::shared_ptr<StreamHandle> stream;
    const Result result = find_any(handle, stream);
    return static_cast<int>(result == Result::Success ? begin_capture(std::move(stream)) : result);
}

int fake_cuda_end_capture(void *handle) {
    std::shared_ptr<StreamHandle> stream;
    const Result result = find_any(handle, stream);
    return static_cast<int>(result == Result::Success ? end_capture(*stream) : result);
}

int fake_cuda_fault(void *stream, int result) {
    return enqueue(stream, [result](Pace & /*pace*/) { return Result{result}; });
}

int fake_cuda_hang(void *stream) {
    return enqueue(stream, [now = hangs().generation.load()](Pace & /*pace*/) {
        std::unique_lock lock(hangs().mutex);
        hangs().ended.wait(lock, [now] { return hangs().generation != now; });
        return Result::Success;
    });
}

void fake_cuda_unhang(void) {
    const std::lock_guard lock(hangs().mutex);
    ++hangs().generation;
    hangs().ended.notify_all();
}

Enqueued &fake_cuda::enqueued() {
    static auto *one = new Enqueued;
    return *one;
}

struct fake_cuda_work fake_cuda_enqueued(void) {
    const std::lock_guard lock(enqueued().mutex);
    return enqueued().work;
}

struct fake_cuda_counts fake_cuda_live(void) {
    fake_cuda_counts counts{};
    counts.streams = handles<StreamHandle>().count();
    counts.events = handles<EventHandle>().count();
    counts.modules = handles<ModuleHandle>().count();
    for (Device device = 0; is_device(device); ++device) {
        counts.contexts += static_cast<size_t>(context_of(device).retained);
        counts.memory += made_on(device);
    }
    const std::shared_lock lock(memories().mutex);
    counts.handles = memories().handles.size();
    counts.reservations = memories().reservations.size();
    counts.allocations = memories().allocations.size();
    counts.mappings = memories().mappings.size() - memories().allocations.size();
    counts.registrations = memories().registered.size();
    for (const auto &[start, bytes] : memories().registered) {
        counts.registered += bytes;
    }
    return counts;
}

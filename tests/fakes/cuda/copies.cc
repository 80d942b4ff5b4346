// SPDX-License-Identifier: Apache-2.0
// Operations on bytes: memset, copies, writes of words and waits for them.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <numeric>
#include <thread>

#include "capture.h"
#include "enqueued.h"
#include "functions.h"
#include "memory.h"
#include "settings.h"
#include "streams.h"

namespace fake_cuda {

namespace {

struct Copy {
    Address to;
    Address from;
    size_t bytes;
};

Result copy_part(const Copy &part, Device device) {
    if (part.bytes == 0) {
        return Result::Success;
    }
    const std::shared_lock lock(memories().mutex);
    auto targets = pieces(part.to, part.bytes, device, Access::ReadWrite, Pageable::Allowed);
    auto sources = pieces(part.from, part.bytes, device, Access::Read, Pageable::Allowed);
    if (targets.empty() || sources.empty()) {
        return Result::IllegalAddress;
    }
    auto target = targets.begin();
    for (auto source = sources.begin(); source != sources.end();) {
        const size_t bytes = std::min(source->bytes, target->bytes);
        if (source->physical != nullptr && source->device() != device && wire() == Wire::Blind) {
            std::memset(target->at, 0xff, bytes);
        } else {
            std::memmove(target->at, source->at, bytes);
        }
        *source = {source->at + bytes, source->bytes - bytes, source->physical};
        *target = {target->at + bytes, target->bytes - bytes, target->physical};
        source += source->bytes == 0 ? 1 : 0;
        target += target->bytes == 0 ? 1 : 0;
    }
    return Result::Success;
}

// Cut at a multiple of a word.
size_t cut_at_words(Pace &pace, size_t bytes) { return pace.cut(bytes / 64) * 64; }

Result carry_out(const Copy &copy, Device device, Pace &pace) {
    const size_t cut = cut_at_words(pace, copy.bytes);
    if (cut != 0) {
        if (const Result result = copy_part({copy.to, copy.from, cut}, device); result != Result::Success) {
            return result;
        }
        pace.pause();
    }
    return copy_part({copy.to + cut, copy.from + cut, copy.bytes - cut}, device);
}

Result fill_part(Address to, unsigned char value, size_t bytes, Device device) {
    const std::shared_lock lock(memories().mutex);
    const auto targets = pieces(to, bytes, device, Access::ReadWrite, Pageable::Refused);
    for (const Piece &piece : targets) {
        if (piece.physical != nullptr) {
            piece.physical->fill(piece.at, value, piece.bytes);
        } else {
            std::memset(piece.at, value, piece.bytes);
        }
    }
    return targets.empty() && bytes > 0 ? Result::IllegalAddress : Result::Success;
}

// `use`: of the word, a std::atomic_ref.
template <class Use>
Result use_word(Address at, Device device, Access access, Use use) {
    const std::shared_lock lock(memories().mutex);
    const auto found = pieces(at, sizeof(uint64_t), device, access, Pageable::Refused);
    if (found.size() != 1) {
        return Result::IllegalAddress;
    }
    use(std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t *>(found[0].at)));
    return Result::Success;
}

Result write_word(Address to, uint64_t value, Device device) {
    // Runs after the stream's earlier work, done or waited for by its thread.
    return use_word(to, device, Access::ReadWrite,
                    [value](auto word) { word.store(value, std::memory_order_release); });
}

Result read_word(Address from, Device device, uint64_t *value) {
    return use_word(from, device, Access::Read, [value](auto word) { *value = word.load(std::memory_order_acquire); });
}

bool is_pageable(Address address) {
    const std::shared_lock lock(memories().mutex);
    return !is_device_address(address) && !is_registered(address);
}

// The stream that is to use a word; no flags are known.
Result find_stream_for_word(Stream handle, Address word, unsigned flags, std::shared_ptr<StreamHandle> &stream) {
    static_assert(kWriteValueDefault == 0 && kWaitValueGeq == 0);
    if (const Result result = find_stream(handle, stream); result != Result::Success) {
        return result;
    }
    return flags != 0 || word % sizeof(uint64_t) != 0 || is_pageable(word) ? Result::InvalidValue : Result::Success;
}

Result submit_copy(StreamHandle &stream, const Copy &copy, Point *point) {
    const Device device = stream.context.device;
    return submit(
        stream, [copy, device](Pace &pace) { return carry_out(copy, device, pace); }, {}, point);
}

// An attribute applies to the copies from its index to the next one's.
bool are_valid(const CopyAttributes *attributes, const size_t *indices, size_t attribute_count, size_t count) {
    if (attribute_count == 0 || attribute_count > count || indices[0] != 0) {
        return false;
    }
    for (size_t i = 0; i < attribute_count; ++i) {
        if (indices[i] >= count || (i > 0 && indices[i] <= indices[i - 1]) ||
            attributes[i].source_access != SourceAccess::InStream ||
            (attributes[i].flags & ~kPreferOverlapWithCompute) != 0) {
            return false;
        }
    }
    return true;
}

// The copies whose attributes prefer to overlap with compute.
size_t overlapping(const CopyAttributes *attributes, const size_t *indices, size_t attribute_count, size_t count) {
    size_t copies = 0;
    for (size_t i = 0; i < attribute_count; ++i) {
        const size_t end = i + 1 < attribute_count ? indices[i + 1] : count;
        copies += attributes[i].flags == kPreferOverlapWithCompute ? end - indices[i] : 0;
    }
    return copies;
}

}  // namespace

Result cuMemsetD8Async(Address to, unsigned char value, size_t bytes, Stream handle) {
    std::shared_ptr<StreamHandle> stream;
    if (const Result result = find_stream(handle, stream); result != Result::Success) {
        return result;
    }
    const Device device = stream->context.device;
    return submit(*stream, [to, value, bytes, device](Pace &pace) {
        const size_t cut = cut_at_words(pace, bytes);
        const Result result = fill_part(to, value, cut, device);
        if (cut == 0 || result != Result::Success) {
            return fill_part(to, value, bytes, device);
        }
        pace.pause();
        return fill_part(to + cut, value, bytes - cut, device);
    });
}

// A copy of pageable memory returns when it is done.
Result cuMemcpyAsync(Address to, Address from, size_t bytes, Stream handle) {
    std::shared_ptr<StreamHandle> stream;
    if (const Result result = find_stream(handle, stream); result != Result::Success) {
        return result;
    }
    const bool waits = bytes > 0 && (is_pageable(to) || is_pageable(from));
    Point point;
    if (waits && stream->capture != CaptureStatus::None) {
        return check_query(*stream);
    }
    const Result result = submit_copy(*stream, {to, from, bytes}, &point);
    if (result == Result::Success) {
        const std::lock_guard lock(enqueued().mutex);
        ++enqueued().work.copies;
    }
    if (result != Result::Success || !waits) {
        return result;
    }
    point.wait();
    return stream->context.failure;
}

Result cuMemcpyBatchAsync(Address *to, Address *from, size_t *bytes, size_t count, CopyAttributes *attributes,
                          size_t *indices, size_t attribute_count, Stream handle) {
    if (count == 0 || !are_valid(attributes, indices, attribute_count, count) || handle == nullptr ||
        handle == kLegacyStream) {
        return Result::InvalidValue;
    }
    std::shared_ptr<StreamHandle> stream;
    if (const Result result = find_stream(handle, stream); result != Result::Success) {
        return result;
    }
    if (stream->capture != CaptureStatus::None) {
        return check_query(*stream);  // batches cannot be captured
    }
    // In random order, as CUDA promises none.
    std::vector<size_t> order(count);
    std::iota(order.begin(), order.end(), size_t{0});
    thread_local std::minstd_rand random(static_cast<unsigned>(seed()));
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t i : order) {
        if (const Result result = submit_copy(*stream, {to[i], from[i], bytes[i]}, nullptr);
            result != Result::Success) {
            return result;
        }
    }
    const std::lock_guard lock(enqueued().mutex);
    enqueued().work.batched_copies += overlapping(attributes, indices, attribute_count, count);
    return Result::Success;
}

Result cuStreamWriteValue64(Stream handle, Address to, uint64_t value, unsigned flags) {
    std::shared_ptr<StreamHandle> stream;
    if (const Result result = find_stream_for_word(handle, to, flags, stream); result != Result::Success) {
        return result;
    }
    const Device device = stream->context.device;
    return submit(*stream, [to, value, device](Pace & /*pace*/) { return write_word(to, value, device); });
}

Result cuStreamWaitValue64(Stream handle, Address word, uint64_t value, unsigned flags) {
    std::shared_ptr<StreamHandle> stream;
    if (const Result result = find_stream_for_word(handle, word, flags, stream); result != Result::Success) {
        return result;
    }
    return submit(*stream, [word, value, &context = stream->context](Pace & /*pace*/) {
        uint64_t found = 0;
        Result result = read_word(word, context.device, &found);
        while (result == Result::Success && context.failure == Result::Success && found < value) {
            std::this_thread::sleep_for(std::chrono::microseconds(20));
            result = read_word(word, context.device, &found);
        }
        return result;
    });
}

}  // namespace fake_cuda

// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/accumulate_target.h"

#include <algorithm>

#include "base/element_type.h"
#include "base/error.h"
#include "memory/exact_sum.h"
#include "transport/cuda/gdr_add.h"
#include "transport/fabric/reliable_stream.h"
#include "transport/shm/stripe_lock.h"

namespace odc {

namespace {

constexpr unsigned kWindow = 8;  // chunks in flight or waiting to be added: few enough to be still in the cache

}  // namespace

// The read of an announced part of a sender's gradient.
class AccumulateTarget::Read final : public ChunkedRead, public std::enable_shared_from_this<Read> {
public:
    Read(AccumulateTarget &accumulate_target, RemoteRank &sender, const AddMessage &message, const RemoteSlice &slice)
        : ChunkedRead(sender, message.address, message.key, message.count * addend_size(slice)),
          accumulate_target_(accumulate_target), message_(message), slice_(slice) {}

    const AddMessage &message() const { return message_; }
    const RemoteSlice &slice() const { return slice_; }
    // Counts `count` more gradients as added; true if that were all.
    bool applied(uint64_t count) {
        applied_ += count;
        return applied_ == message_.count;
    }

    std::byte *buffer(uint64_t, size_t, void **descriptor) override {
        if (slice_.memory == MemoryKind::Gpu) {
            std::byte *const slot = accumulate_target_.gdr_add_->take();
            *descriptor =
                slot != nullptr ? accumulate_target_.registered_.find(*from().endpoint, slot)->descriptor : nullptr;
            return slot;
        }
        BounceRings::Ring &ring = accumulate_target_.staging_.at(*from().endpoint);
        *descriptor = ring.region().descriptor;
        return ring.take();
    }
    void arrived(std::byte *buffer, uint64_t offset, size_t bytes) override {
        const size_t size = addend_size(slice_);
        const uint64_t each = stripe_elements(slice_);
        Chunk chunk{shared_from_this(), buffer, message_.first + offset / size, bytes / size, {}};
        for (uint64_t stripe = chunk.first / each;
             slice_.memory == MemoryKind::Host && stripe * each < chunk.first + chunk.count; ++stripe) {
            chunk.stripes.push_back(stripe);
        }
        accumulate_target_.chunks_.push_back(std::move(chunk));
    }
    void unused(std::byte *buffer) override {
        slice_.memory == MemoryKind::Gpu ? accumulate_target_.gdr_add_->give_back(buffer)
                                         : accumulate_target_.staging_.at(*from().endpoint).give_back(buffer);
    }
    void finished() override {}

private:
    AccumulateTarget &accumulate_target_;
    AddMessage message_;
    RemoteSlice slice_;
    uint64_t applied_ = 0;
};

AccumulateTarget::AccumulateTarget(int rank, size_t staging_bytes, const RegisteredMemory &registered)
    : rank_(rank), registered_(registered),
      staging_(std::min(staging_bytes, kWindow * kChunkBytes), staging_chunk_bytes(staging_bytes), Access::Local),
      reads_(kWindow, staging_.slot_bytes()) {}

AccumulateTarget::~AccumulateTarget() = default;

void AccumulateTarget::on_add(RemoteRank &sender, const AddMessage &message) {
    const auto known = slices_.find(message.record);
    if (known == slices_.end() || known->second.accumulator == nullptr) {
        fail(ODC_ERROR_INTERNAL, "rank {} adds to a shard that has no sums here", sender.rank);
    }
    RemoteSlice slice = known->second;
    slice.exponent = message.exponent;
    slice.addends = message.addends;
    // Only whole stripes: the first addition to a stripe stores.
    const uint64_t each = stripe_elements(slice);
    const uint64_t end = message.first + message.count;
    if (message.first > slice.numel || message.count > slice.numel - message.first || message.count == 0 ||
        message.first % each != 0 || (end % each != 0 && end != slice.numel)) {
        fail(ODC_ERROR_INTERNAL, "rank {} adds elements {} to {} of a slice of {}", sender.rank, message.first, end,
             slice.numel);
    }
    const bool converts = slice.summation == ODC_SUM_EXACT && message.addends == 0;
    if (converts ? !is_exponent(message.exponent) : message.exponent != 0) {
        fail(ODC_ERROR_INTERNAL, "rank {} adds to a shard with exponent {}", sender.rank, message.exponent);
    }
    const uint32_t most = slice.memory == MemoryKind::Gpu    ? 0
                          : slice.summation == ODC_SUM_EXACT ? kMostExactAddends + 1
                                                             : 1;
    if (message.addends > most || (message.clamped > 0 && slice.summation != ODC_SUM_EXACT)) {
        fail(ODC_ERROR_INTERNAL, "rank {} adds sums of {} gradients, {} of them clamped", sender.rank, message.addends,
             message.clamped);
    }
    if (message.clamped > 0) {
        slice.clamped->fetch_add(message.clamped, std::memory_order_relaxed);
    }
    reads_.start(std::make_shared<Read>(*this, sender, message, slice));
}

bool AccumulateTarget::add_one() {
    if (chunks_.empty()) {
        return false;
    }
    // One chunk at a time, so that peers' reads are served in between.
    Progress progress = Progress::None;
    for (size_t left = chunks_.size(); left > 0 && progress == Progress::None; --left) {
        Chunk chunk = std::move(chunks_.front());
        chunks_.pop_front();
        progress = add(chunk);
        if (progress == Progress::All) {
            finish(chunk);
        } else {
            chunks_.push_back(std::move(chunk));
        }
    }
    return progress != Progress::None;
}

AccumulateTarget::Progress AccumulateTarget::add(Chunk &chunk) {
    return chunk.read->slice().memory == MemoryKind::Gpu ? add_on_gpu(chunk) : add_stripes(chunk);
}

AccumulateTarget::Progress AccumulateTarget::add_on_gpu(Chunk &chunk) {
    if (chunk.started) {
        return gdr_add_->finish(chunk.data) ? Progress::All : Progress::None;
    }
    gdr_add_->start(chunk.read->slice(), chunk.first, chunk.count, chunk.data);
    chunk.started = true;
    return Progress::Some;
}

AccumulateTarget::Progress AccumulateTarget::add_stripes(Chunk &chunk) {
    const RemoteSlice &slice = chunk.read->slice();
    const size_t size = addend_size(slice);
    const size_t before = chunk.stripes.size();
    std::erase_if(chunk.stripes, [&](uint64_t index) {
        if (!try_lock(slice.stripes[index], rank_)) {
            return false;
        }
        const StripeLock lock(slice.stripes[index]);
        const uint64_t offset = index * stripe_elements(slice) - chunk.first;
        add_to_stripe(slice, index, chunk.data + offset * size, chunk.read->message().generation);
        return true;
    });
    const bool any = chunk.stripes.size() < before;
    return chunk.stripes.empty() ? Progress::All : any ? Progress::Some : Progress::None;
}

void AccumulateTarget::finish(Chunk &chunk) {
    RemoteRank &sender = chunk.read->from();
    if (chunk.read->slice().memory == MemoryKind::Host) {
        staging_.at(*sender.endpoint).give_back(chunk.data);
    }
    if (chunk.read->applied(chunk.count)) {
        const AddMessage &added = chunk.read->message();
        sender.stream->send(sender, encode(AppliedMessage{added.operation, added.count}));
    }
}

void AccumulateTarget::stop() {
    reads_.stop();
    chunks_.clear();
}

}  // namespace odc

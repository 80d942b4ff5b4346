// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/accumulate_target.h"

#include <algorithm>

#include "base/element_type.h"
#include "base/error.h"
#include "memory/host_kernels.h"
#include "transport/cuda/gdr_add.h"
#include "transport/shm/stripe_lock.h"

namespace odc {

namespace {

constexpr unsigned kWindow = 8;  // chunks on their way or waiting to be added: they should be in the cache still

}  // namespace

// A stretch of a sender's gradient on its way into this rank's accumulator.
class AccumulateTarget::Offer final : public Flow, public std::enable_shared_from_this<Offer> {
public:
    Offer(AccumulateTarget &additions, RemoteRank &sender, const AddMessage &message, const RemoteSlice &slice)
        : Flow(sender, message.address, message.key, message.count * element_size(slice.gradient_type)),
          accumulate_target_(additions), message_(message), slice_(slice) {}

    const AddMessage &message() const { return message_; }
    const RemoteSlice &slice() const { return slice_; }
    // `count` more of its gradients are in the sums. True: now all are.
    bool applied(uint64_t count) {
        applied_ += count;
        return applied_ == message_.count;
    }

    std::byte *target(uint64_t, size_t, void **descriptor) override {
        if (slice_.memory == MemoryKind::Gpu) {
            std::byte *const slot = accumulate_target_.gdr_add_->take();
            *descriptor =
                slot != nullptr ? accumulate_target_.registered_.find(*from().endpoint, slot)->descriptor : nullptr;
            return slot;
        }
        BounceRings::Ring &ring = accumulate_target_.staging_.at(*from().endpoint);
        *descriptor = ring.exposed().descriptor;
        return ring.take();
    }
    void landed(std::byte *target, uint64_t offset, size_t bytes) override {
        const size_t size = element_size(slice_.gradient_type);
        const uint64_t each = stripe_elements(slice_.gradient_type);
        Landed landed{shared_from_this(), target, message_.first + offset / size, bytes / size, {}};
        for (uint64_t stripe = landed.first / each;
             slice_.memory == MemoryKind::Host && stripe * each < landed.first + landed.count; ++stripe) {
            landed.stripes.push_back(stripe);
        }
        accumulate_target_.landed_.push_back(std::move(landed));
    }
    void returned(std::byte *target) override {
        slice_.memory == MemoryKind::Gpu ? accumulate_target_.gdr_add_->give_back(target)
                                         : accumulate_target_.staging_.at(*from().endpoint).give_back(target);
    }
    void ended() override {}

private:
    AccumulateTarget &accumulate_target_;
    AddMessage message_;
    RemoteSlice slice_;
    uint64_t applied_ = 0;
};

AccumulateTarget::AccumulateTarget(int rank, size_t staging_bytes, const RegisteredMemory &registered, Tell tell)
    : rank_(rank), registered_(registered),
      staging_(std::min(staging_bytes, kWindow * kChunkBytes), staging_chunk_bytes(staging_bytes), Access::Local),
      tell_(std::move(tell)), reads_(kWindow, staging_.slot_bytes()) {}

AccumulateTarget::~AccumulateTarget() = default;

void AccumulateTarget::offered(RemoteRank &sender, const AddMessage &offer) {
    const auto known = slices_.find(offer.record);
    if (known == slices_.end() || known->second.accumulator == nullptr) {
        fail(ODC_ERROR_INTERNAL, "rank ", sender.rank, " adds to a shard that has no sums here");
    }
    const RemoteSlice &slice = known->second;
    // Whole stripes: the first addition to one stores.
    const uint64_t each = stripe_elements(slice.gradient_type);
    const uint64_t end = offer.first + offer.count;
    if (offer.first > slice.numel || offer.count > slice.numel - offer.first || offer.count == 0 ||
        offer.first % each != 0 || (end % each != 0 && end != slice.numel)) {
        fail(ODC_ERROR_INTERNAL, "rank ", sender.rank, " adds elements ", offer.first, " to ", end, " of a slice of ",
             slice.numel);
    }
    reads_.start(std::make_shared<Offer>(*this, sender, offer, slice));
}

bool AccumulateTarget::work() {
    if (landed_.empty()) {
        return false;
    }
    // One chunk at a time: between two of them peers' reads are served.
    Progress progress = Progress::None;
    for (size_t left = landed_.size(); left > 0 && progress == Progress::None; --left) {
        Landed landed = std::move(landed_.front());
        landed_.pop_front();
        progress = add(landed);
        if (progress == Progress::All) {
            applied(landed);
        } else {
            landed_.push_back(std::move(landed));
        }
    }
    return progress != Progress::None;
}

AccumulateTarget::Progress AccumulateTarget::add(Landed &landed) {
    return landed.offer->slice().memory == MemoryKind::Gpu ? add_on_gpu(landed) : add_stripes(landed);
}

AccumulateTarget::Progress AccumulateTarget::add_on_gpu(Landed &landed) {
    if (landed.started) {
        return gdr_add_->finish(landed.data) ? Progress::All : Progress::None;
    }
    gdr_add_->start(landed.offer->slice(), landed.first, landed.count, landed.data);
    landed.started = true;
    return Progress::Some;
}

AccumulateTarget::Progress AccumulateTarget::add_stripes(Landed &landed) {
    const RemoteSlice &slice = landed.offer->slice();
    const size_t size = element_size(slice.gradient_type);
    const size_t before = landed.stripes.size();
    std::erase_if(landed.stripes, [&](uint64_t index) {
        if (!try_lock(slice.stripes[index], rank_)) {
            return false;
        }
        const uint64_t offset = index * stripe_elements(slice.gradient_type) - landed.first;
        add_to_stripe(slice, index, landed.data + offset * size, landed.offer->message().epoch);
        unlock(slice.stripes[index]);
        return true;
    });
    const bool any = landed.stripes.size() < before;
    return landed.stripes.empty() ? Progress::All : any ? Progress::Some : Progress::None;
}

void AccumulateTarget::applied(Landed &landed) {
    RemoteRank &sender = landed.offer->from();
    if (landed.offer->slice().memory == MemoryKind::Host) {
        staging_.at(*sender.endpoint).give_back(landed.data);
    }
    if (landed.offer->applied(landed.count)) {
        tell_(sender, AppliedMessage{landed.offer->message().operation, landed.offer->message().count});
    }
}

void AccumulateTarget::stop() {
    reads_.stop();
    landed_.clear();
}

}  // namespace odc

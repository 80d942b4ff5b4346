// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/get.h"

#include <algorithm>

#include "base/element_type.h"
#include "memory/host_kernels.h"

namespace odc {

namespace {

constexpr unsigned kReadsAhead = 8;  // chunks on their way

}  // namespace

// A slice on its way.
class GetQueue::Get final : public Flow {
public:
    Get(GetQueue &gathers, RemoteRank &owner, const RemoteSlice &slice, std::byte *to, std::shared_ptr<Request> request)
        : Flow(owner, slice.address, slice.key, slice.numel * element_size(slice.parameter_type)), gathers_(gathers),
          to_(to), lent_(gathers.registered_.find(*owner.endpoint, to)), request_(std::move(request)) {}

    std::byte *target(uint64_t offset, size_t, void **descriptor) override {
        if (!is_staged()) {
            *descriptor = lent_ ? lent_->descriptor : nullptr;
            return to_ + offset;
        }
        BounceRings::Ring &ring = gathers_.staging_.at(*from().endpoint);
        *descriptor = ring.exposed().descriptor;
        return ring.take();
    }
    void landed(std::byte *target, uint64_t offset, size_t bytes) override {
        if (is_staged()) {
            copy_bytes(to_ + offset, target, bytes);
            returned(target);
        }
        landed_ += bytes;
    }
    void returned(std::byte *target) override {
        if (is_staged()) {
            gathers_.staging_.at(*from().endpoint).give_back(target);
        }
    }
    void ended() override {
        landed_ == bytes() ? request_->finish() : request_->give_up();
        gathers_.unsettled_.erase(request_);
        gathers_.settled_(request_);
    }

private:
    bool is_staged() { return !lent_ && from().endpoint->needs_local(); }

    GetQueue &gathers_;
    std::byte *to_;
    std::optional<Registration> lent_;
    std::shared_ptr<Request> request_;
    uint64_t landed_ = 0;
};

GetQueue::GetQueue(size_t staging_bytes, const RegisteredMemory &registered, Settled settled)
    : registered_(registered), settled_(std::move(settled)),
      staging_(std::min(staging_bytes, kReadsAhead * kChunkBytes), std::min(staging_bytes, kChunkBytes), Access::Local),
      reads_(kReadsAhead, staging_.slot_bytes()) {}

GetQueue::~GetQueue() = default;

void GetQueue::start(RemoteRank &owner, const RemoteSlice &from, std::byte *to, uint64_t wanted,
                     std::shared_ptr<Request> request) {
    auto get = std::make_shared<Get>(*this, owner, from, to, request);
    unsettled_.emplace(std::move(request), get);
    if (from.published->load(std::memory_order_acquire) >= wanted) {
        reads_.start(std::move(get));
    } else {
        expected_.push_back({std::move(get), from.published, wanted});
    }
}

void GetQueue::published(RemoteRank &owner) {
    std::erase_if(expected_, [&](const Expected &one) {
        if (&one.get->from() != &owner || one.published->load(std::memory_order_acquire) < one.wanted) {
            return false;
        }
        reads_.start(one.get);
        return true;
    });
}

void GetQueue::cancel(const std::shared_ptr<Request> &request) {
    const auto known = unsettled_.find(request);
    if (known == unsettled_.end()) {
        return;
    }
    if (const std::shared_ptr<Get> get = known->second.lock()) {
        get->stop();
    }
}

void GetQueue::stop() {
    expected_.clear();
    reads_.stop();
}

}  // namespace odc

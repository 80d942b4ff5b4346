// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/get.h"

#include <algorithm>
#include <utility>

#include "base/element_type.h"
#include "memory/host_kernels.h"

namespace odc {

namespace {

constexpr unsigned kReadsInFlight = 8;
constexpr int64_t kCheckNs = 100'000'000;

}  // namespace

// The read of one slice.
class GetQueue::Get final : public ChunkedRead {
public:
    Get(GetQueue &queue, RemoteRank &owner, const RemoteSlice &slice, std::byte *to, const ReadAhead &ahead,
        std::shared_ptr<Request> request)
        : ChunkedRead(owner, slice.address, slice.key, slice.numel * element_size(slice.parameter_type), ahead),
          queue_(queue), to_(to), registration_(queue.registered_.find(*owner.endpoint, to)),
          request_(std::move(request)) {}

    std::byte *buffer(uint64_t offset, size_t, void **descriptor) override {
        if (!is_staged()) {
            *descriptor = registration_ ? registration_->descriptor : nullptr;
            return to_ + offset;
        }
        BounceRings::Ring &ring = queue_.staging_.at(*from().endpoint);
        *descriptor = ring.region().descriptor;
        return ring.take();
    }
    void arrived(std::byte *buffer, uint64_t offset, size_t bytes) override {
        if (is_staged()) {
            copy_bytes(to_ + offset, buffer, bytes);
            unused(buffer);
        }
        arrived_ += bytes;
        queue_.mine_.read_bytes.fetch_add(bytes, std::memory_order_relaxed);
    }
    void unused(std::byte *buffer) override {
        if (is_staged()) {
            queue_.staging_.at(*from().endpoint).give_back(buffer);
        }
    }
    void finished() override {
        arrived_ == bytes() ? request_->complete() : request_->set_cancelled();
        queue_.pending_.erase(request_);
        queue_.on_end_(request_);
    }

private:
    bool is_staged() { return !registration_ && from().endpoint->needs_local(); }

    GetQueue &queue_;
    std::byte *to_;
    std::optional<Registration> registration_;
    std::shared_ptr<Request> request_;
    uint64_t arrived_ = 0;
};

GetQueue::GetQueue(size_t staging_bytes, const RegisteredMemory &registered, ControlBlock &mine, OnEnd on_end)
    : registered_(registered), mine_(mine), on_end_(std::move(on_end)),
      staging_(std::min(staging_bytes, kReadsInFlight * kChunkBytes), std::min(staging_bytes, kChunkBytes),
               Access::Local),
      reads_(kReadsInFlight, staging_.slot_bytes()) {}

GetQueue::~GetQueue() = default;

void GetQueue::start(RemoteRank &owner, const RemoteSlice &from, std::byte *to, uint64_t generation,
                     const ReadAhead &ahead, std::shared_ptr<Request> request) {
    auto get = std::make_shared<Get>(*this, owner, from, to, ahead, request);
    pending_.emplace(std::move(request), get);
    if (from.published->load(std::memory_order_acquire) >= generation) {
        reads_.start(std::move(get));
    } else {
        unpublished_[&owner].push_back({std::move(get), from.published, generation});
    }
}

void GetQueue::on_published(RemoteRank &owner) {
    const auto known = unpublished_.find(&owner);
    if (known == unpublished_.end()) {
        return;
    }
    std::vector<Unpublished> &waiting = known->second;
    const auto first = std::stable_partition(waiting.begin(), waiting.end(), [](const Unpublished &one) {
        return one.published->load(std::memory_order_acquire) < one.generation;
    });
    std::for_each(first, waiting.end(), [this](const Unpublished &one) { reads_.start(one.get); });
    waiting.erase(first, waiting.end());
}

bool GetQueue::pump() {
    const uint64_t wants = mine_.wants.load(std::memory_order_acquire);
    if (std::exchange(seen_wants_, wants) != wants) {
        reads_.move_wanted();
    }
    return reads_.pump();
}

void GetQueue::cancel(const std::shared_ptr<Request> &request) {
    const auto known = pending_.find(request);
    if (known == pending_.end()) {
        return;
    }
    if (const std::shared_ptr<Get> get = known->second.lock()) {
        get->stop();
        std::erase_if(unpublished_[&get->from()], [&](const Unpublished &one) { return one.get == get; });
    }
}

// Chunks in flight may still be written to the buffers when these are used for something else, so the job fails.
void GetQueue::cancel_overdue(int64_t now_ns) {
    if (now_ns < next_check_ns_) {
        return;
    }
    next_check_ns_ = now_ns + kCheckNs;
    std::vector<std::pair<std::shared_ptr<Request>, std::shared_ptr<Get>>> overdue;
    for (const auto &[request, weak] : pending_) {
        const int64_t deadline_ns = request->deadline_ns();
        const std::shared_ptr<Get> get = weak.lock();
        if (deadline_ns != 0 && get != nullptr && (get->from().gone || now_ns > deadline_ns)) {
            overdue.emplace_back(request, get);
        }
    }
    for (const auto &[request, get] : overdue) {
        get->stop();
        request->set_cancelled();
        pending_.erase(request);
        on_end_(request);
    }
}

void GetQueue::stop() {
    unpublished_.clear();
    reads_.stop();
}

}  // namespace odc

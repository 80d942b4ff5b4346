// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/accumulate_source.h"

#include "base/element_type.h"
#include "base/error.h"
#include "memory/host_kernels.h"

#include <algorithm>
#include <optional>

namespace odc {

AccumulateSource::AccumulateSource(size_t staging_bytes, const RegisteredMemory &registered, Tell tell)
    : registered_(registered), staging_(staging_bytes, staging_chunk_bytes(staging_bytes), Access::RemoteRank),
      tell_(std::move(tell)) {}

AccumulateSource::~AccumulateSource() = default;

void AccumulateSource::start(RemoteRank &owner, const RemoteSlice &to, const std::byte *from, uint64_t epoch,
                             std::shared_ptr<Request> request) {
    auto sum = std::make_shared<Sum>(Sum{owner, to, from, epoch, 0, 0, std::move(request)});
    if (const std::optional<Registration> registration = registered_.find(*owner.endpoint, from)) {
        offer(std::move(sum), to.numel, {registration->address, registration->key});
    } else if (owner.endpoint->needs_local()) {
        waiting_.push_back(std::move(sum));
    } else {
        Exposed exposed =
            owner.endpoint->expose(const_cast<std::byte *>(from), to.numel * element_size(to.gradient_type),
                                   MemoryKind::Host, Access::RemoteRank);
        offer(std::move(sum), to.numel, {exposed.address, exposed.key, std::move(exposed)});
    }
}

// Offers the next `count` elements of the sum.
void AccumulateSource::offer(std::shared_ptr<Sum> sum, uint64_t count, Source source) {
    const AddMessage message{++last_, sum->to.record, sum->epoch, sum->to.first + sum->offered,
                             count,   source.address, source.key};
    sum->offered += count;
    RemoteRank &owner = sum->owner;
    pieces_.emplace(message.operation, Piece{std::move(sum), count, std::move(source)});
    tell_(owner, message);
}

bool AccumulateSource::pump() {
    bool any = false;
    std::erase_if(waiting_, [&](const std::shared_ptr<Sum> &sum) {
        const size_t size = element_size(sum->to.gradient_type);
        while (sum->offered < sum->to.numel) {
            BounceRings::Ring &ring = staging_.at(*sum->owner.endpoint);
            std::byte *slot = ring.take();
            if (slot == nullptr) {
                return false;  // others may go through another endpoint
            }
            const uint64_t count = std::min<uint64_t>(staging_.slot_bytes() / size, sum->to.numel - sum->offered);
            copy_bytes(slot, sum->from + sum->offered * size, count * size);
            offer(sum, count, {ring.address(slot), ring.exposed().key, {}, slot});
            any = true;
        }
        return true;
    });
    return any;
}

std::shared_ptr<Request> AccumulateSource::applied(RemoteRank &owner, const AppliedMessage &message) {
    const auto known = pieces_.find(message.operation);
    if (known == pieces_.end() || &known->second.sum->owner != &owner || message.count > known->second.left) {
        fail(ODC_ERROR_INTERNAL, "rank ", owner.rank, " says that it has added what it was not offered");
    }
    Piece &piece = known->second;
    piece.left -= message.count;
    const std::shared_ptr<Sum> sum = piece.sum;
    sum->applied += message.count;
    if (piece.left == 0) {
        if (piece.source.slot != nullptr) {
            staging_.at(*owner.endpoint).give_back(piece.source.slot);
        }
        pieces_.erase(known);
    }
    return sum->applied == sum->to.numel ? sum->request : nullptr;
}

void AccumulateSource::stop() {
    waiting_.clear();
    pieces_.clear();
}

}  // namespace odc

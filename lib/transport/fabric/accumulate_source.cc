// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/accumulate_source.h"

#include "base/element_type.h"
#include "base/error.h"
#include "memory/host_kernels.h"

#include <algorithm>
#include <optional>

namespace odc {

Offers::Offers(size_t staging_bytes, const Loans &loans, Tell tell)
    : loans_(loans), staging_(staging_bytes, staging_chunk_bytes(staging_bytes), Access::Remote),
      tell_(std::move(tell)) {}

Offers::~Offers() = default;

void Offers::start(Remote &owner, const RemoteSlice &to, const std::byte *from, uint64_t filled,
                   std::shared_ptr<Transfer> transfer) {
    auto sum = std::make_shared<Sum>(Sum{owner, to, from, filled, 0, 0, std::move(transfer)});
    if (const std::optional<Loan> loan = loans_.find(*owner.endpoint, from)) {
        offer(std::move(sum), to.numel, {loan->address, loan->key});
    } else if (owner.endpoint->needs_local()) {
        waiting_.push_back(std::move(sum));
    } else {
        Exposed exposed = owner.endpoint->expose(
            const_cast<std::byte *>(from), to.numel * element_size(to.gradient_type), MemoryKind::Host, Access::Remote);
        offer(std::move(sum), to.numel, {exposed.address, exposed.key, std::move(exposed)});
    }
}

// Offers the next `count` elements of the sum.
void Offers::offer(std::shared_ptr<Sum> sum, uint64_t count, Source source) {
    const AddNotice notice{++last_, sum->to.record, sum->filled, sum->to.first + sum->offered,
                           count,   source.address, source.key};
    sum->offered += count;
    Remote &owner = sum->owner;
    pieces_.emplace(notice.operation, Piece{std::move(sum), count, std::move(source)});
    tell_(owner, notice);
}

bool Offers::pump() {
    bool any = false;
    std::erase_if(waiting_, [&](const std::shared_ptr<Sum> &sum) {
        const size_t size = element_size(sum->to.gradient_type);
        while (sum->offered < sum->to.numel) {
            Staging::Ring &ring = staging_.at(*sum->owner.endpoint);
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

std::shared_ptr<Transfer> Offers::applied(Remote &owner, const AppliedNotice &notice) {
    const auto known = pieces_.find(notice.operation);
    if (known == pieces_.end() || &known->second.sum->owner != &owner || notice.count > known->second.left) {
        fail(ODC_ERROR_INTERNAL, "rank ", owner.rank, " says that it has added what it was not offered");
    }
    Piece &piece = known->second;
    piece.left -= notice.count;
    const std::shared_ptr<Sum> sum = piece.sum;
    sum->applied += notice.count;
    if (piece.left == 0) {
        if (piece.source.slot != nullptr) {
            staging_.at(*owner.endpoint).give_back(piece.source.slot);
        }
        pieces_.erase(known);
    }
    return sum->applied == sum->to.numel ? sum->transfer : nullptr;
}

void Offers::stop() {
    waiting_.clear();
    pieces_.clear();
}

}  // namespace odc

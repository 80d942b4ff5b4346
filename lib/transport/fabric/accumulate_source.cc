// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/accumulate_source.h"

#include "base/element_type.h"
#include "base/error.h"
#include "memory/host_kernels.h"
#include "transport/fabric/reliable_stream.h"

#include <algorithm>
#include <optional>

namespace odc {

AccumulateSource::AccumulateSource(size_t staging_bytes, const RegisteredMemory &registered)
    : registered_(registered), staging_(staging_bytes, staging_chunk_bytes(staging_bytes), Access::RemoteRead) {}

AccumulateSource::~AccumulateSource() = default;

void AccumulateSource::start(RemoteRank &owner, const RemoteSlice &to, const std::byte *from, uint64_t generation,
                             std::shared_ptr<Request> request) {
    auto addition = std::make_shared<Addition>(Addition{owner, to, from, generation, 0, 0, std::move(request)});
    if (const std::optional<Registration> registration = registered_.find(*owner.endpoint, from)) {
        announce(std::move(addition), to.numel, {registration->address, registration->key});
    } else if (owner.endpoint->needs_local()) {
        waiting_.push_back(std::move(addition));
    } else {
        MemoryRegion region =
            owner.endpoint->register_memory(from, to.numel * addend_size(to), MemoryKind::Host, Access::RemoteRead);
        announce(std::move(addition), to.numel, {region.address, region.key, std::move(region)});
    }
}

// Announces the next `count` elements of the addition.
void AccumulateSource::announce(std::shared_ptr<Addition> addition, uint64_t count, Source source) {
    const AddMessage message{++last_operation_,
                             addition->to.record,
                             addition->generation,
                             addition->to.first + addition->announced,
                             count,
                             source.address,
                             source.key,
                             addition->to.exponent,
                             addition->to.addends,
                             addition->announced == 0 ? addition->to.were_clamped : 0};
    addition->announced += count;
    RemoteRank &owner = addition->owner;
    pieces_.emplace(message.operation, Piece{std::move(addition), count, std::move(source)});
    owner.stream->send(owner, encode(message));
}

bool AccumulateSource::pump() {
    bool any = false;
    std::erase_if(waiting_, [&](const std::shared_ptr<Addition> &addition) {
        const size_t size = addend_size(addition->to);
        while (addition->announced < addition->to.numel) {
            BounceRings::Ring &ring = staging_.at(*addition->owner.endpoint);
            std::byte *slot = ring.take();
            if (slot == nullptr) {
                return false;  // additions behind it may use another endpoint
            }
            const uint64_t count =
                std::min<uint64_t>(staging_.slot_bytes() / size, addition->to.numel - addition->announced);
            copy_bytes(slot, addition->from + addition->announced * size, count * size);
            announce(addition, count, {ring.address(slot), ring.region().key, {}, slot});
            any = true;
        }
        return true;
    });
    return any;
}

std::shared_ptr<Request> AccumulateSource::on_applied(RemoteRank &owner, const AppliedMessage &message) {
    const auto known = pieces_.find(message.operation);
    if (known == pieces_.end() || &known->second.addition->owner != &owner || message.count > known->second.left) {
        fail(ODC_ERROR_INTERNAL, "rank {} acknowledges an addition that this rank has not announced", owner.rank);
    }
    Piece &piece = known->second;
    piece.left -= message.count;
    const std::shared_ptr<Addition> addition = piece.addition;
    addition->applied += message.count;
    applied_bytes_.fetch_add(message.count * addend_size(addition->to), std::memory_order_relaxed);
    if (piece.left == 0) {
        if (piece.source.slot != nullptr) {
            staging_.at(*owner.endpoint).give_back(piece.source.slot);
        }
        pieces_.erase(known);
    }
    return addition->applied == addition->to.numel ? addition->request : nullptr;
}

void AccumulateSource::stop() {
    waiting_.clear();
    pieces_.clear();
}

}  // namespace odc

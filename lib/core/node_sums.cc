// SPDX-License-Identifier: Apache-2.0
#include "core/node_sums.h"

#include <algorithm>

#include "base/counters.h"
#include "base/deadline.h"
#include "bootstrap/peer.h"
#include "core/foreign_slices.h"
#include "core/shard_directory.h"
#include "core/wait.h"
#include "memory/partial_sum.h"

namespace odc {

namespace {

// Foreign slices that may have partial sums, in this rank's turn, which begins behind its own slice, so that ranks that finish
// together send different ones.
template <class Body>
void for_each_foreign_slice(Shard &shard, const Body &body) {
    for (uint64_t i = 1; i < shard.owners(); ++i) {
        const uint64_t index = (shard.own_index() + i) % shard.owners();
        ForeignSlice *foreign = foreign_slice(shard, index);
        if (foreign != nullptr && foreign->has_sum) {
            body(index, *foreign);
        }
    }
}

}  // namespace

Shard::Held NodeSums::plan(const Shard &shard, uint64_t left) const {
    return shard.description().gradient_type != 0 ? fit(shard, &ForeignSlice::sum, left) : Shard::Held{};
}

// ---- Additions ----

bool NodeSums::takes(const Shard &shard, uint64_t index) const {
    const ForeignSlice *foreign = adds(shard) ? foreign_slice(shard, index) : nullptr;
    return foreign != nullptr && foreign->has_sum && foreign->number < shard.linked(foreign->holder)->partial_sum_count;
}

PartialSum &NodeSums::partial_sum(const Shard &shard, const ForeignSlice &foreign) const {
    std::byte *const segment = shard.bases(foreign.holder).host;
    return *reinterpret_cast<PartialSum *>(segment + shard.linked(foreign.holder)->partial_sums + foreign.sum.begin);
}

RemoteSlice NodeSums::sum(const Shard &shard, uint64_t index) const {
    PartialSum &partial = partial_sum(shard, *foreign_slice(shard, index));
    RemoteSlice slice = shard.slice(index);
    slice.accumulator = reinterpret_cast<std::byte *>(&partial) + PartialSumLayout(shard, index).sums;
    slice.stripes = partial.stripes();
    slice.clamped = &partial.clamped;
    return slice;
}

// ---- The end of additions ----

void NodeSums::finish(Shard &shard, Call call) {
    if (!adds(shard)) {
        return;
    }
    for_each_foreign_slice(shard, [&](uint64_t index, const ForeignSlice &foreign) {
        if (directory_.presence(shard, foreign.holder) == ShardDirectory::Presence::Published) {
            count_in(shard, index);
        }
    });
    std::erase_if(unsent_, [this, call](const Part &part) { return send(part, call); });
}

void NodeSums::end(const std::vector<Shard *> &shards, Job::Wait &wait) {
    for (Shard *shard : shards) {
        if (adds(*shard)) {
            shard->finished = generation();  // an interrupted sync cannot be followed by additions
            finish(*shard, Call::Sync);
        }
    }
    for (Shard *shard : shards) {
        if (adds(*shard)) {
            for_each_foreign_slice(*shard, [&](uint64_t index, ForeignSlice &foreign) {
                const bool has_none = shard->linked(foreign.holder) != nullptr && !takes(*shard, index);
                if (!has_none && directory_.await_presence(*shard, foreign.holder, wait)) {
                    count_in(*shard, index);
                } else {  // released: nobody can add any more, and in later minibatches the record may be another shard's
                    foreign.has_sum = false;
                }
            });
        }
    }
    for (; !unsent_.empty(); unsent_.pop_back()) {
        const Part part = unsent_.back();
        directory_.await_published(*part.shard, part.index, wait);
        send(part, Call::Sync);
    }
    await_sent(wait);
}

void NodeSums::count_in(Shard &shard, uint64_t index) {
    ForeignSlice &foreign = *foreign_slice(shard, index);
    if (foreign.counted_in == generation() || !takes(shard, index)) {
        return;
    }
    unsent_.push_back({&shard, index});  // before what cannot be taken back
    foreign.counted_in = generation();
    PartialSum &partial = partial_sum(shard, foreign);
    const bool is_last = partial.count_in(generation()) == holder_count(shard);
    if (!is_last || partial.stripes()->generation < generation()) {
        unsent_.pop_back();
    }
}

// Returns false if this rank has not heard yet that the owner has published; it has, as a rank of this host added to its slice.
bool NodeSums::send(const Part &part, Call call) {
    Shard &shard = *part.shard;
    if (!directory_.is_published(shard, part.index)) {
        return false;
    }
    PartialSum &partial = partial_sum(shard, *foreign_slice(shard, part.index));
    RemoteSlice to = shard.slice(part.index);
    to.addends = shard.is_exact() ? partial.stripes()->addends : 1;
    to.were_clamped = partial.clamped.exchange(0, std::memory_order_relaxed);
    try {
        Job::Wait wait(job_, call_name(call));
        Endpoint &owner = job_.endpoint_to(shard.owner(part.index));
        sent_.push_back({part, owner.start_add(to, sum(shard, part.index).accumulator, generation(), wait)});
    } catch (...) {
        job_.fail_halfway(call);
    }
    return true;
}

void NodeSums::await_sent(Job::Wait &wait) {
    if (sent_.empty()) {
        return;  // without a look at the clock, of which a sync has few
    }
    const int64_t begin = now_ns();
    for (; !sent_.empty(); sent_.pop_back()) {
        const Sent &sent = sent_.back();
        const int owner = sent.request->owner();
        wait.describe([&, owner] {
            return formatted(
                "what this host's ranks have added to the slice of {} of shard \"{}\" is on its way; it {}",
                job_.who(owner), sent.part.shard->name(), job_.what(owner));
        });
        wait.until_served(owner, [&sent] { return sent.request->is_complete(); });
    }
    counters_.sent_wait_ns.add(static_cast<uint64_t>(now_ns() - begin));
}

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
#include "core/operation.h"

#include "base/element_type.h"
#include "base/error.h"
#include "core/job.h"

namespace odc {

std::byte *Operation::target(uint64_t index) const {
    return std::get<Gather>(kind).to + shard->slices().begin(index) * element_size(shard->description().parameter_type);
}

const std::byte *Operation::gradient(uint64_t index) const {
    return std::get<ScatterAdd>(kind).from +
           shard->slices().begin(index) * element_size(shard->description().gradient_type);
}

std::string Operation::in_flight_text(const Job &job, int owner) const {
    return formatted("{}{} of shard \"{}\" is on its way; it {}",
                     call() == Call::Gather ? "the slice of " : "an addition to ", job.who(owner), shard->name(),
                     job.what(owner));
}

PublishedMessage published_message(const Job &job, const Shard &shard) {
    return {shard.record_offset(), job.minibatch(), job.mine().reductions.load(std::memory_order_relaxed),
            shard.exact.vote.word(), 0};
}

bool has_remote_owner(const Job &job, const Shard &shard) {
    for (uint64_t index = 0; index < shard.owners(); ++index) {
        if (!job.on_this_host(shard.owner(index))) {
            return true;
        }
    }
    return false;
}

}  // namespace odc

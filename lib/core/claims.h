// SPDX-License-Identifier: Apache-2.0
// The items of a minibatch that this rank claims. Rank 0 counts them in its control block: the ranks of its host take them
// there; those of other hosts ask its progress thread.
#pragma once

#include "core/job.h"
#include "memory/claim_counter.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace odc {

class ClaimRequest;

class Claims {
public:
    explicit Claims(Job &job) : job_(job) {}

    // Returns the next item, or nothing if all `count` items are taken. Several threads may call this at once.
    std::optional<uint64_t> claim(uint64_t count);
    // Called before this rank arrives: throws if an interrupted claim is not repeated, as it may have been given an item.
    void check_answered() const;
    void end_minibatch() { claimed_[(job_.minibatch() + 1) % 2].clear(); }
    // The items claimed in the running minibatch or the one before, in the order of the claims.
    const std::vector<uint64_t> &claimed(uint64_t minibatch) const;

private:
    void reserve();
    ClaimedItem ask(uint64_t count);
    std::shared_ptr<ClaimRequest> interrupted(uint64_t count);

    Job &job_;
    std::mutex mutex_;
    size_t running_ = 0;                                      // calls
    std::vector<std::shared_ptr<ClaimRequest>> interrupted_;  // each is taken over by the next call
    std::vector<uint64_t> claimed_[2];                        // by minibatch parity
};

}  // namespace odc

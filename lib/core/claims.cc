// SPDX-License-Identifier: Apache-2.0
#include "core/claims.h"

#include <algorithm>
#include "core/wait.h"

#include "transport/fabric/claim_exchange.h"

namespace odc {

namespace {

// Room for `more`, growing as push_back does.
template <class Value>
void make_room(std::vector<Value> &list, size_t more) {
    if (list.size() + more > list.capacity()) {
        list.reserve(std::max(list.size() + more, 2 * list.capacity()));
    }
}

}  // namespace

std::optional<uint64_t> Claims::claim(uint64_t count) {
    if (count > kMostItems) {
        fail(ODC_ERROR_ARGUMENT, "odc_claim: count is {}, at most {} items can be claimed in a minibatch", count,
             kMostItems);
    }
    job_.check_peers();
    const Job::CallScope scope(job_, Call::Claim);
    reserve();
    ClaimedItem item{};
    try {
        item = job_.on_this_host(0) ? claim_item(job_.block(0).claims, job_.minibatch(), count) : ask(count);
    } catch (...) {
        const std::lock_guard lock(mutex_);
        --running_;
        throw;
    }
    const std::lock_guard lock(mutex_);
    --running_;
    if (item.count != count) {
        job_.fail_job(ODC_ERROR_MISMATCH,
                      formatted("{} claims from {} items in minibatch {}, but the first claim was from {}: all ranks "
                                "name the same count",
                                job_.who(job_.rank()), count, job_.minibatch(), item.count));
    }
    if (item.index == count) {
        return std::nullopt;
    }
    claimed_[job_.minibatch() % 2].push_back(item.index);
    return item.index;
}

// Makes room for the result first: an item that has been taken cannot be given back.
void Claims::reserve() {
    const std::lock_guard lock(mutex_);
    make_room(claimed_[job_.minibatch() % 2], running_ + 1);
    make_room(interrupted_, running_ + 1);
    ++running_;
}

ClaimedItem Claims::ask(uint64_t count) {
    std::shared_ptr<ClaimRequest> request = interrupted(count);
    if (!request) {
        request = job_.channel().claim(job_.minibatch(), count);
    }
    Job::Wait wait(job_, call_name(Call::Claim));
    wait.describe([this] {
        return formatted("{}, which hands out the items of minibatch {}, has not answered; it {}", job_.who(0),
                         job_.minibatch(), job_.what(0));
    });
    try {
        wait.until_served(0, [&request = *request] { return request.is_complete(); });
    } catch (...) {
        const std::lock_guard lock(mutex_);
        interrupted_.push_back(std::move(request));
        throw;
    }
    return request->item;
}

std::shared_ptr<ClaimRequest> Claims::interrupted(uint64_t count) {
    const std::lock_guard lock(mutex_);
    if (interrupted_.empty()) {
        return nullptr;
    }
    std::shared_ptr<ClaimRequest> last = interrupted_.back();
    if (last->asked != count) {
        fail(ODC_ERROR_ARGUMENT, "odc_claim: count is {}, but a call with {} was interrupted; call it again with that",
             count, last->asked);
    }
    interrupted_.pop_back();
    return last;
}

void Claims::check_answered() const {
    if (!interrupted_.empty()) {
        fail(ODC_ERROR_PHASE,
             "odc_minibatch_sync: odc_claim was interrupted in minibatch {}, and an item may be this rank's already: "
             "call it again first",
             job_.minibatch());
    }
}

const std::vector<uint64_t> &Claims::claimed(uint64_t minibatch) const {
    if (minibatch != job_.minibatch() && minibatch + 1 != job_.minibatch()) {
        fail(ODC_ERROR_ARGUMENT,
             "odc_get_claims: the claims of minibatch {} are not kept, only those of the running one, {}, and of the "
             "one before",
             minibatch, job_.minibatch());
    }
    return claimed_[minibatch % 2];
}

}  // namespace odc

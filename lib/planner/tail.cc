// SPDX-License-Identifier: Apache-2.0
#include "planner/tail.h"

#include "planner/microbatches.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

namespace odc {

namespace {

// Samples are put together in an item up to this part of what a rank claims, so that the last claims end close together.
constexpr double kClaimsOfRank = 12;

// Puts neighbours in cost together, up to `most` of it and to the token budget.
Microbatches items_of(const Samples &costliest_first, double most, const Minibatch &minibatch) {
    Microbatches out;
    double cost = 0;
    uint64_t room = 0;
    for (const uint32_t sample : costliest_first) {
        const uint64_t tokens = minibatch.lengths[sample];
        cost += minibatch.costs[sample];
        if (out.empty() || cost > most || tokens > room) {
            out.emplace_back();
            cost = minibatch.costs[sample];
            room = minibatch.max_tokens;
        }
        room -= tokens;
        out.back().push_back(sample);
    }
    heaviest_first(out, minibatch);
    return out;
}

}  // namespace

Tail cut_tail(const Minibatch &minibatch, double share, size_t ranks) {
    Samples costliest_first(minibatch.samples());
    std::iota(costliest_first.begin(), costliest_first.end(), 0U);
    std::stable_sort(costliest_first.begin(), costliest_first.end(),
                     [&](uint32_t x, uint32_t y) { return minibatch.costs[x] > minibatch.costs[y]; });
    const double most = share * minibatch.cost(costliest_first);
    double cost = 0;
    auto first = costliest_first.end();
    while (first != costliest_first.begin() && (share == 1 || cost + minibatch.costs[*(first - 1)] <= most)) {
        cost += minibatch.costs[*--first];
    }
    Tail out;
    out.planned.assign(costliest_first.begin(), first);
    std::sort(out.planned.begin(), out.planned.end());
    out.items = items_of({first, costliest_first.end()}, cost / static_cast<double>(ranks) / kClaimsOfRank, minibatch);
    return out;
}

std::vector<Microbatches> claimed_in_order(std::vector<Microbatches> ranks, const Microbatches &items,
                                           const Minibatch &minibatch) {
    using Done = std::pair<double, size_t>;  // when, and the rank
    std::priority_queue<Done, std::vector<Done>, std::greater<>> first_done;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
        double cost = 0;
        for (const Samples &microbatch : ranks[rank]) {
            cost += minibatch.cost(microbatch);
        }
        first_done.emplace(cost / minibatch.speeds[rank], rank);
    }
    for (const Samples &item : items) {
        const auto [at, rank] = first_done.top();
        first_done.pop();
        ranks[rank].push_back(item);
        first_done.emplace(at + minibatch.cost(item) / minibatch.speeds[rank], rank);
    }
    return ranks;
}

}  // namespace odc

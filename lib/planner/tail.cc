// SPDX-License-Identifier: Apache-2.0
#include "planner/tail.h"

#include "planner/microbatches.h"
#include "planner/partition.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

namespace odc {

namespace {

// Samples are put together in an item up to this part of what a rank claims, so that the last claims end close together.
constexpr double kClaimsOfRank = 12;

// Puts neighbours in cost together, up to `most` of it and to the token budget.
Microbatches items_of(const Samples &sorted, double most, const Minibatch &minibatch) {
    Microbatches out;
    double cost = 0;
    uint64_t room = 0;
    for (const uint32_t sample : sorted) {
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
    const Samples samples = by_cost(minibatch.costs);
    const double most = share * minibatch.cost(samples);
    double cost = 0;
    auto first = samples.end();
    while (first != samples.begin() && (share == 1 || cost + minibatch.costs[*(first - 1)] <= most)) {
        cost += minibatch.costs[*--first];
    }
    Tail out;
    out.planned.assign(samples.begin(), first);
    std::sort(out.planned.begin(), out.planned.end());
    out.items = items_of({first, samples.end()}, cost / static_cast<double>(ranks) / kClaimsOfRank, minibatch);
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

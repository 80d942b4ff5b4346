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

// Samples are put together in an item up to this part of what a rank claims, which is what the last claims may be apart.
constexpr double kClaimsOfRank = 12;

}  // namespace

Tail cut_tail(const Minibatch &minibatch, double share) {
    Samples cheapest(minibatch.samples());
    std::iota(cheapest.begin(), cheapest.end(), 0U);
    std::stable_sort(cheapest.begin(), cheapest.end(),
                     [&](uint32_t x, uint32_t y) { return minibatch.costs[x] < minibatch.costs[y]; });
    const double most = share * std::accumulate(minibatch.costs.begin(), minibatch.costs.end(), 0.0);
    Tail out;
    Samples left;
    double cost = 0;
    for (const uint32_t sample : cheapest) {
        const bool fits = out.planned.empty() && (share == 1 || cost + minibatch.costs[sample] <= most);
        cost += fits ? minibatch.costs[sample] : 0;
        (fits ? left : out.planned).push_back(sample);
    }
    std::sort(out.planned.begin(), out.planned.end());
    const double grain = cost / static_cast<double>(minibatch.ranks) / kClaimsOfRank;
    for (auto sample = left.rbegin(); sample != left.rend(); ++sample) {
        if (!out.items.empty()) {
            Samples &last = out.items.back();
            last.push_back(*sample);
            if (minibatch.cost(last) <= grain && within_budget(last, minibatch)) {
                continue;
            }
            last.pop_back();
        }
        out.items.push_back({*sample});
    }
    heaviest_first(out.items, minibatch);
    return out;
}

void claim_in_order(std::vector<Microbatches> &ranks, const Microbatches &items, const Minibatch &minibatch) {
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
}

}  // namespace odc

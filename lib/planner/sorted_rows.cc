// SPDX-License-Identifier: Apache-2.0
#include "planner/sorted_rows.h"

#include "planner/microbatches.h"
#include "planner/partition.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

namespace odc {

namespace {

// Placements of a sample into a microbatch, over all numbers of microbatches that are tried; bounds the time. A number that is too
// small to succeed may use a quarter of what is left.
constexpr uint64_t kPlacements = 8'000'000;

// Longest first into the cheapest microbatch that has room.
class Packing {
public:
    Packing(const Minibatch &minibatch, size_t microbatches) : minibatch_(minibatch), rest_(microbatches) {
        for (uint32_t i = 0; i < microbatches; ++i) {
            cheapest_.emplace(0.0, i);
        }
        std::fill(rest_.begin(), rest_.end(), minibatch.max_tokens);
    }

    // None if a sample has no room, or `placements`, which are counted down, do not suffice.
    std::optional<Microbatches> run(const Samples &by_cost, uint64_t &placements) {
        Microbatches out(rest_.size());
        for (const uint32_t sample : by_cost) {
            const std::optional<uint32_t> microbatch = place(sample, placements);
            if (!microbatch) {
                return std::nullopt;
            }
            out[*microbatch].push_back(sample);
        }
        return out;
    }

private:
    using Entry = std::pair<double, uint32_t>;

    std::optional<uint32_t> place(uint32_t sample, uint64_t &placements) {
        const uint64_t tokens = minibatch_.lengths[sample];
        std::vector<Entry> full;
        std::optional<uint32_t> found;
        while (!found && !cheapest_.empty() && placements > 0) {
            --placements;
            const auto [cost, microbatch] = cheapest_.top();
            cheapest_.pop();
            if (tokens <= rest_[microbatch]) {
                rest_[microbatch] -= tokens;
                cheapest_.emplace(cost + minibatch_.costs[sample], microbatch);
                found = microbatch;
            } else {
                full.emplace_back(cost, microbatch);
            }
        }
        for (const Entry &entry : full) {
            cheapest_.push(entry);
        }
        return found;
    }

    const Minibatch &minibatch_;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> cheapest_;
    std::vector<uint64_t> rest_;  // tokens
};

// Rows from the costliest on; in each the rank with the least so far gets the costliest microbatch.
std::vector<Microbatches> dealt(Microbatches microbatches, const Minibatch &minibatch) {
    heaviest_first(microbatches, minibatch);
    std::vector<Microbatches> out(minibatch.ranks);
    std::vector<double> sums(minibatch.ranks);
    std::vector<size_t> order(minibatch.ranks);
    std::iota(order.begin(), order.end(), size_t{0});
    for (size_t begin = 0; begin < microbatches.size(); begin += minibatch.ranks) {
        std::stable_sort(order.begin(), order.end(), [&](size_t x, size_t y) { return sums[x] < sums[y]; });
        for (size_t i = 0; i < minibatch.ranks; ++i) {
            Samples &samples = microbatches[begin + i];
            sums[order[i]] += minibatch.cost(samples);
            out[order[i]].push_back(std::move(samples));
        }
    }
    return out;
}

// Microbatches a rank to try: as few as the tokens allow, a few more, and as many as the samples allow.
std::vector<size_t> counts_to_try(const Samples &samples, const Minibatch &minibatch) {
    const size_t fewest = (fewest_microbatches(samples, minibatch) + minibatch.ranks - 1) / minibatch.ranks;
    const size_t most = samples.size() / minibatch.ranks;
    std::vector<size_t> counts;
    for (size_t more = 0; fewest + more < most; more += std::max<size_t>(1, more)) {
        counts.push_back(fewest + more);
    }
    if (fewest <= most) {
        counts.push_back(most);
    }
    return counts;
}

}  // namespace

double collective_makespan(const std::vector<Microbatches> &ranks, const Minibatch &minibatch) {
    std::vector<double> slowest;  // rank of each microbatch
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
        slowest.resize(std::max(slowest.size(), ranks[rank].size()));
        for (size_t i = 0; i < ranks[rank].size(); ++i) {
            slowest[i] = std::max(slowest[i], minibatch.cost(ranks[rank][i]) / minibatch.speeds[rank]);
        }
    }
    return std::accumulate(slowest.begin(), slowest.end(), 0.0);
}

std::optional<std::vector<Microbatches>> sorted_rows(const Minibatch &minibatch) {
    const Samples samples = by_cost(minibatch.costs);
    std::optional<std::vector<Microbatches>> best;
    double least = 0;
    uint64_t left = kPlacements;
    for (const size_t count : counts_to_try(samples, minibatch)) {
        const uint64_t given = std::max<uint64_t>(left / 4, 2 * samples.size());
        uint64_t placements = given;
        std::optional<Microbatches> microbatches = Packing(minibatch, count * minibatch.ranks).run(samples, placements);
        left -= std::min(left, given - placements);
        if (!microbatches) {
            continue;
        }
        std::vector<Microbatches> ranks = dealt(std::move(*microbatches), minibatch);
        const double makespan = collective_makespan(ranks, minibatch);
        if (!best || makespan < least) {
            best = std::move(ranks);
            least = makespan;
        }
    }
    return best;
}

}  // namespace odc

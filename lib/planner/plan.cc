// SPDX-License-Identifier: Apache-2.0
// The three policies. Each partitions the samples over ranks by cost, then each rank's samples into microbatches within the
// token budget.
#include "planner/plan.h"

#include "planner/partition.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

namespace odc {

namespace {

// Bounds of a plan's time: comparisons per sample to refine a partition (over ranks, into microbatches), and placements of the
// exhaustive search, which runs for up to kSearchItems samples.
constexpr uint64_t kRankSteps = 30'000;
constexpr uint64_t kRankStepsAtMost = 6'000'000;
constexpr uint64_t kMicrobatchSteps = 2'000;
constexpr uint64_t kMicrobatchStepsAtMost = 200'000;
constexpr uint64_t kSearchNodes = 300'000;
constexpr size_t kSearchItems = 32;

struct CostModel {
    const char *name;
    double a;
    double b;
};
constexpr std::array<CostModel, 3> kCostModels = {{
    {"linear", 0, 1},
    {"1.5b", 1.982122, 2.611821},
    {"7b", 4.348357, 8.768377},
}};

// A minibatch to plan.
struct Minibatch {
    const uint64_t *lengths;
    uint64_t max_tokens;
    std::vector<double> costs;
    size_t ranks;  // at least one, and no more than samples: further ranks stay idle

    size_t samples() const { return costs.size(); }
};

using Samples = std::vector<uint32_t>;
using Microbatches = std::vector<Samples>;

void check(const odc_plan_request &request) {
    if (!request.lengths || request.count == 0) {
        fail(ODC_ERROR_ARGUMENT, "odc_plan: no samples to plan; give `lengths` and a `count` of at least 1");
    }
    if (request.count > INT32_MAX) {
        fail(ODC_ERROR_ARGUMENT, "odc_plan: {} samples are more than the {} a minibatch may have", request.count,
             INT32_MAX);
    }
    if (request.ranks <= 0) {
        fail(ODC_ERROR_ARGUMENT, "odc_plan: `ranks` is {}; it must be at least 1", request.ranks);
    }
    if (request.policy < ODC_LOCAL_SORT || request.policy > ODC_LB_MINI) {
        fail(ODC_ERROR_ARGUMENT, "odc_plan: there is no policy {}; see odc_policy in odc.h", request.policy);
    }
    if (request.max_tokens == 0) {
        fail(ODC_ERROR_ARGUMENT, "odc_plan: `max_tokens` is 0; a microbatch must be allowed at least one token");
    }
    if (!(request.a >= 0 && request.b >= 0 && std::isfinite(request.a) && std::isfinite(request.b))) {
        fail(ODC_ERROR_ARGUMENT, "odc_plan: the cost coefficients a={:g} and b={:g} must be finite and not negative",
             request.a, request.b);
    }
}

double cost_of(uint64_t tokens, double a, double b) {
    const double x = static_cast<double>(tokens) / 32000;
    return a * x * x + b * x;
}

Minibatch minibatch_of(const odc_plan_request &request) {
    Minibatch out{request.lengths, request.max_tokens, {}, std::min<size_t>(request.ranks, request.count)};
    const bool linear = request.a == 0 && request.b == 0;
    double total = 0;
    out.costs.reserve(request.count);
    for (uint64_t i = 0; i < request.count; ++i) {
        const uint64_t tokens = request.lengths[i];
        if (tokens == 0 || tokens > request.max_tokens) {
            fail(ODC_ERROR_ARGUMENT,
                 "odc_plan: sample {} has {} tokens; it must have at least 1 and at most max_tokens={}", i, tokens,
                 request.max_tokens);
        }
        out.costs.push_back(cost_of(tokens, request.a, linear ? 1 : request.b));
        total += out.costs.back();
        if (out.costs.back() <= 0 || !std::isfinite(total)) {
            fail(ODC_ERROR_ARGUMENT,
                 "odc_plan: a={:g} and b={:g} give sample {} of {} tokens a cost beyond a double's range; choose "
                 "coefficients nearer to 1",
                 request.a, request.b, i, tokens);
        }
    }
    return out;
}

bool within_budget(const Samples &samples, const Minibatch &minibatch) {
    uint64_t left = minibatch.max_tokens;
    for (const uint32_t sample : samples) {
        if (minibatch.lengths[sample] > left) {
            return false;
        }
        left -= minibatch.lengths[sample];
    }
    return true;
}

// ---- Over ranks ----

// Refines the starts and returns the best, the first of equals.
Parts best_of(std::vector<Parts> starts, const Minibatch &minibatch, CountLimits limits) {
    const uint64_t steps = std::min(kRankSteps * minibatch.samples(), kRankStepsAtMost) / starts.size();
    Parts *best = nullptr;
    double least = 0;
    for (Parts &start : starts) {
        const double before = makespan(start, minibatch.costs);
        Parts refined = start;
        refine(refined, minibatch.costs, limits, steps);
        const double after = makespan(refined, minibatch.costs);
        if (after < before) {  // sums in another order may round differently
            start = std::move(refined);
        }
        if (!best || std::min(before, after) < least) {
            best = &start;
            least = std::min(before, after);
        }
    }
    if (minibatch.samples() <= kSearchItems) {
        search(*best, minibatch.costs, limits, kSearchNodes);
    }
    return std::move(*best);
}

// If the count is not a multiple of the ranks, some ranks have one sample more than the others' microbatches, so two of their
// samples must share a microbatch. Pairs the shortest samples, one pair to a rank. If a pair exceeds the budget, no division
// into equally many microbatches exists.
std::optional<Parts> paired(const Minibatch &minibatch) {
    const size_t pairs = minibatch.samples() % minibatch.ranks;
    Samples shortest(minibatch.samples());
    std::iota(shortest.begin(), shortest.end(), 0U);
    std::stable_sort(shortest.begin(), shortest.end(),
                     [&](uint32_t x, uint32_t y) { return minibatch.lengths[x] < minibatch.lengths[y]; });
    Parts units;
    std::vector<double> costs;
    for (size_t i = 0; i < pairs; ++i) {
        units.push_back({shortest[i], shortest[2 * pairs - 1 - i]});
        costs.push_back(0);  // so that the pairs, as the cheapest units, go to different ranks
        if (!within_budget(units.back(), minibatch)) {
            return std::nullopt;
        }
    }
    for (size_t i = 2 * pairs; i < shortest.size(); ++i) {
        units.push_back({shortest[i]});
        costs.push_back(minibatch.costs[shortest[i]]);
    }
    Parts out;
    for (const Samples &of_rank : largest_differencing_equal(costs, minibatch.ranks)) {
        Samples &samples = out.emplace_back();
        for (const uint32_t unit : of_rank) {
            samples.insert(samples.end(), units[unit].begin(), units[unit].end());
        }
    }
    return out;
}

// The ranks' sample counts differ by at most one.
Parts equal_counts(const Minibatch &minibatch) {
    const size_t low = minibatch.samples() / minibatch.ranks;
    const size_t high = (minibatch.samples() + minibatch.ranks - 1) / minibatch.ranks;
    std::vector<Parts> starts = {largest_differencing_equal(minibatch.costs, minibatch.ranks),
                                 round_robin(minibatch.samples(), minibatch.ranks)};
    if (const std::optional<Parts> start = low < high ? paired(minibatch) : std::nullopt) {
        starts.push_back(*start);
    }
    return best_of(std::move(starts), minibatch, {low, high});
}

Parts free_counts(const Minibatch &minibatch) {
    return best_of({largest_differencing(minibatch.costs, minibatch.ranks),
                    longest_first(minibatch.costs, minibatch.ranks), equal_counts(minibatch)},
                   minibatch, {1, minibatch.samples()});
}

// ---- Within a rank ----

// The samples' tokens over the budget, rounded up, without overflow of the sum.
size_t fewest_microbatches(const Samples &samples, const Minibatch &minibatch) {
    size_t full = 0;
    uint64_t rest = 0;
    for (const uint32_t sample : samples) {
        const uint64_t tokens = minibatch.lengths[sample];
        const uint64_t left = minibatch.max_tokens - rest;
        full += tokens >= left ? 1 : 0;
        rest = tokens >= left ? tokens - left : rest + tokens;
    }
    return full + (rest > 0 ? 1 : 0);
}

// `weights`: what to balance, for each sample of the minibatch.
std::optional<Microbatches> packed(const Samples &samples, size_t microbatches, const Minibatch &minibatch,
                                   const std::vector<double> &weights) {
    std::vector<double> local;
    for (const uint32_t sample : samples) {
        local.push_back(weights[sample]);
    }
    Microbatches out = largest_differencing(local, microbatches);
    refine(out, local, {1, local.size()}, std::min(kMicrobatchSteps * local.size(), kMicrobatchStepsAtMost));
    for (Samples &microbatch : out) {
        for (uint32_t &index : microbatch) {
            index = samples[index];
        }
        if (!within_budget(microbatch, minibatch)) {
            return std::nullopt;
        }
    }
    return out;
}

void heaviest_first(Microbatches &microbatches, const Minibatch &minibatch) {
    const auto cost = [&](const Samples &microbatch) {
        return std::accumulate(microbatch.begin(), microbatch.end(), 0.0,
                               [&](double sum, uint32_t sample) { return sum + minibatch.costs[sample]; });
    };
    std::stable_sort(microbatches.begin(), microbatches.end(),
                     [&](const Samples &x, const Samples &y) { return cost(x) > cost(y); });
}

// The next number of microbatches to try: one more, in larger steps once there are hundreds.
size_t after(size_t microbatches) { return microbatches + 1 + microbatches / 128; }

// ---- The policies ----

std::vector<Microbatches> local_sort(const Minibatch &minibatch) {
    std::vector<Microbatches> out;
    for (Samples &samples : round_robin(minibatch.samples(), minibatch.ranks)) {
        std::stable_sort(samples.begin(), samples.end(),
                         [&](uint32_t x, uint32_t y) { return minibatch.lengths[x] < minibatch.lengths[y]; });
        Microbatches &microbatches = out.emplace_back();
        for (const uint32_t sample : samples) {
            microbatches.push_back({sample});
        }
    }
    return out;
}

// The same number of microbatches for all ranks, as few as possible.
std::optional<std::vector<Microbatches>> packed_alike(const Parts &ranks, const Minibatch &minibatch) {
    size_t fewest = 1;
    size_t most = minibatch.samples();
    for (const Samples &samples : ranks) {
        fewest = std::max(fewest, fewest_microbatches(samples, minibatch));
        most = std::min(most, samples.size());
    }
    for (size_t count = fewest; count <= most; count = count < most ? std::min(after(count), most) : most + 1) {
        std::vector<Microbatches> out;
        for (const Samples &samples : ranks) {
            std::optional<Microbatches> microbatches = packed(samples, count, minibatch, minibatch.costs);
            if (!microbatches) {
                break;
            }
            out.push_back(std::move(*microbatches));
        }
        if (out.size() == ranks.size()) {
            return out;
        }
    }
    return std::nullopt;
}

std::vector<Microbatches> lb_micro(const Minibatch &minibatch, const odc_plan_request &request) {
    if (request.count < static_cast<uint64_t>(request.ranks)) {
        fail(ODC_ERROR_ARGUMENT,
             "odc_plan: LB-Micro cannot give each of {} ranks a microbatch of {} samples, and collectives need "
             "equally many; add samples or use LB-Mini",
             request.ranks, request.count);
    }
    std::optional<std::vector<Microbatches>> out = packed_alike(equal_counts(minibatch), minibatch);
    if (!out) {
        if (const std::optional<Parts> ranks = paired(minibatch)) {
            out = packed_alike(*ranks, minibatch);
        }
    }
    if (!out) {
        fail(ODC_ERROR_ARGUMENT,
             "odc_plan: LB-Micro cannot divide {} samples over {} ranks into equally many microbatches of at most {} "
             "tokens; make the count a multiple of the ranks, raise max_tokens or use LB-Mini",
             request.count, request.ranks, request.max_tokens);
    }
    for (Microbatches &microbatches : *out) {
        heaviest_first(microbatches, minibatch);
    }
    return *out;
}

std::vector<Microbatches> lb_mini(const Minibatch &minibatch) {
    const std::vector<double> tokens(minibatch.lengths, minibatch.lengths + minibatch.samples());
    std::vector<Microbatches> out;
    for (const Samples &samples : free_counts(minibatch)) {
        // Balanced by cost if that keeps the budget with this number, else by tokens.
        std::optional<Microbatches> microbatches;
        for (size_t count = fewest_microbatches(samples, minibatch); !microbatches;
             count = std::min(after(count), samples.size())) {
            microbatches = packed(samples, count, minibatch, minibatch.costs);
            if (!microbatches) {
                microbatches = packed(samples, count, minibatch, tokens);
            }
        }
        heaviest_first(*microbatches, minibatch);
        out.push_back(std::move(*microbatches));
    }
    return out;
}

std::vector<Microbatches> planned(const Minibatch &minibatch, const odc_plan_request &request) {
    switch (request.policy) {
        case ODC_LOCAL_SORT: return local_sort(minibatch);
        case ODC_LB_MICRO: return lb_micro(minibatch, request);
        default: return lb_mini(minibatch);
    }
}

}  // namespace

odc_plan_summary plan(const odc_plan_request &request, int32_t *rank_of, int32_t *microbatch_of) {
    check(request);
    if (!rank_of || !microbatch_of) {
        fail(ODC_ERROR_ARGUMENT, "odc_plan: `rank_of` and `microbatch_of` must point to {} numbers each",
             request.count);
    }
    const Minibatch minibatch = minibatch_of(request);
    const std::vector<Microbatches> ranks = planned(minibatch, request);
    Parts samples(ranks.size());
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
        for (size_t i = 0; i < ranks[rank].size(); ++i) {
            for (const uint32_t sample : ranks[rank][i]) {
                rank_of[sample] = static_cast<int32_t>(rank);
                microbatch_of[sample] = static_cast<int32_t>(i);
                samples[rank].push_back(sample);
            }
        }
    }
    odc_plan_summary out = {sizeof(out), makespan(samples, minibatch.costs), 0};
    // Equal sums may differ by rounding.
    out.lower_bound = std::min(lower_bound(minibatch.costs, minibatch.ranks), out.makespan);
    return out;
}

void plan_cost(const char *model, double *a, double *b) {
    if (!model || !a || !b) {
        fail(ODC_ERROR_ARGUMENT, "odc_plan_cost: `model`, `a` and `b` must not be NULL");
    }
    for (const CostModel &known : kCostModels) {
        if (std::strcmp(known.name, model) == 0) {
            *a = known.a;
            *b = known.b;
            return;
        }
    }
    fail(ODC_ERROR_ARGUMENT, "odc_plan_cost: there is no cost model \"{}\"; known are linear, 1.5b and 7b", model);
}

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// The policies. All but sorted rows partition the samples over ranks by cost, then each rank's samples into microbatches within
// the token budget. LB-Mini alone knows ranks of different speeds, and leaves a tail to be claimed.
#include "planner/plan.h"

#include "planner/microbatches.h"
#include "planner/minibatch.h"
#include "planner/partition.h"
#include "planner/refinement.h"
#include "planner/sorted_rows.h"
#include "planner/tail.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

namespace odc {

namespace {

// Bounds of a plan's time: comparisons per sample to refine a partition over ranks, and of ranks in the exhaustive search, which
// runs for up to kSearchItems samples.
constexpr uint64_t kRankSteps = 30'000;
constexpr uint64_t kRankStepsAtMost = 6'000'000;
constexpr uint64_t kSearchSteps = 600'000;
constexpr size_t kSearchItems = 32;

constexpr int32_t kToBeClaimed = -1;  // for a rank

// ---- Over ranks ----

// Refines the starts and returns the best, the first of equals.
Parts best_of(std::vector<Parts> starts, const Minibatch &minibatch, CountLimits limits) {
    const uint64_t steps = std::min(kRankSteps * minibatch.samples(), kRankStepsAtMost) / starts.size();
    Parts *best = nullptr;
    double least = 0;
    for (Parts &start : starts) {
        const double before = makespan(start, minibatch.costs, minibatch.speeds);
        Parts refined = start;
        refine(refined, minibatch.costs, minibatch.speeds, limits, steps);
        const double after = makespan(refined, minibatch.costs, minibatch.speeds);
        if (after < before) {  // sums in another order may round differently
            start = std::move(refined);
        }
        if (!best || std::min(before, after) < least) {
            best = &start;
            least = std::min(before, after);
        }
    }
    if (minibatch.samples() <= kSearchItems) {
        search(*best, minibatch.costs, minibatch.speeds, limits, kSearchSteps / minibatch.speeds.size());
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

// Whether no division is shorter. True often if there are few samples a rank, as one sample is the bound then.
bool reaches_bound(const Parts &parts, const Minibatch &minibatch) {
    return makespan(parts, minibatch.costs, minibatch.speeds) <= lower_bound(minibatch.costs, minibatch.speeds);
}

Parts free_counts(const Minibatch &minibatch) {
    Parts simple = longest_first(minibatch.costs, minibatch.ranks);
    if (reaches_bound(simple, minibatch)) {
        return simple;
    }
    return best_of({largest_differencing(minibatch.costs, minibatch.ranks), std::move(simple), equal_counts(minibatch)},
                   minibatch, {1, minibatch.samples()});
}

// Divides for ranks of different speeds; some may have nothing to do.
Parts by_speed(const Minibatch &minibatch) {
    Parts as_equal = matched(free_counts(minibatch.with_equal_speeds()), minibatch.costs, minibatch.speeds);
    if (reaches_bound(as_equal, minibatch)) {
        return as_equal;
    }
    return best_of({first_to_end(minibatch.costs, minibatch.speeds), std::move(as_equal)}, minibatch,
                   {0, minibatch.samples()});
}

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

std::optional<std::vector<Microbatches>> lb_micro(const Minibatch &minibatch) {
    std::optional<std::vector<Microbatches>> out = packed_alike(equal_counts(minibatch), minibatch);
    if (!out) {
        if (const std::optional<Parts> ranks = paired(minibatch)) {
            out = packed_alike(*ranks, minibatch);
        }
    }
    if (out) {
        for (Microbatches &microbatches : *out) {
            heaviest_first(microbatches, minibatch);
        }
    }
    return out;
}

// The faster with collectives.
std::optional<std::vector<Microbatches>> sorted_rows_or_lb_micro(const Minibatch &minibatch) {
    std::optional<std::vector<Microbatches>> rows = sorted_rows(minibatch);
    std::optional<std::vector<Microbatches>> alike = lb_micro(minibatch);
    if (rows && alike && collective_makespan(*rows, minibatch) <= collective_makespan(*alike, minibatch)) {
        return rows;
    }
    return alike ? alike : rows;
}

// A plan for collectives, which need equally many microbatches.
std::vector<Microbatches> for_collectives(const Minibatch &minibatch, const odc_plan_request &request) {
    const char *policy = request.policy == ODC_LB_MICRO ? "LB-Micro" : "sorted rows";
    if (request.count < static_cast<uint64_t>(request.ranks)) {
        fail(ODC_ERROR_ARGUMENT,
             "odc_plan: {} cannot give each of {} ranks a microbatch of {} samples, and collectives need "
             "equally many; add samples or use LB-Mini",
             policy, request.ranks, request.count);
    }
    std::optional<std::vector<Microbatches>> out =
        request.policy == ODC_LB_MICRO ? lb_micro(minibatch) : sorted_rows_or_lb_micro(minibatch);
    if (!out) {
        fail(ODC_ERROR_ARGUMENT,
             "odc_plan: {} cannot divide {} samples over {} ranks into equally many microbatches of at most {} "
             "tokens; make the count a multiple of the ranks, raise max_tokens or use LB-Mini",
             policy, request.count, request.ranks, request.max_tokens);
    }
    return std::move(*out);
}

std::vector<Microbatches> lb_mini(const Minibatch &minibatch) {
    const std::vector<double> tokens(minibatch.lengths.begin(), minibatch.lengths.end());
    std::vector<Microbatches> out;
    for (const Samples &samples : minibatch.equally_fast() ? free_counts(minibatch) : by_speed(minibatch)) {
        if (samples.empty()) {
            out.emplace_back();
            continue;
        }
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
        case ODC_LB_MINI: return lb_mini(minibatch);
        default: return for_collectives(minibatch, request);
    }
}

// By LB-Mini: all ranks' planned microbatches, none of a sample that is in the tail.
std::vector<Microbatches> planned_before(const Tail &tail, const Minibatch &minibatch) {
    std::vector<Microbatches> out(minibatch.ranks);
    if (tail.planned.empty()) {
        return out;
    }
    std::vector<Microbatches> some = lb_mini(minibatch.part(tail.planned));
    for (size_t rank = 0; rank < some.size(); ++rank) {
        for (Samples &microbatch : some[rank]) {
            for (uint32_t &sample : microbatch) {
                sample = tail.planned[sample];
            }
        }
        out[rank] = std::move(some[rank]);
    }
    return out;
}

Parts samples_of(const std::vector<Microbatches> &ranks) {
    Parts out(ranks.size());
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
        for (const Samples &microbatch : ranks[rank]) {
            out[rank].insert(out[rank].end(), microbatch.begin(), microbatch.end());
        }
    }
    return out;
}

void write(const Microbatches &microbatches, int32_t rank, int32_t *rank_of, int32_t *microbatch_of) {
    for (size_t i = 0; i < microbatches.size(); ++i) {
        for (const uint32_t sample : microbatches[i]) {
            rank_of[sample] = rank;
            microbatch_of[sample] = static_cast<int32_t>(i);
        }
    }
}

}  // namespace

odc_plan_summary plan(const odc_plan_request &request, int32_t *rank_of, int32_t *microbatch_of) {
    const Minibatch minibatch = minibatch_of(request);
    if (!rank_of || !microbatch_of) {
        fail(ODC_ERROR_ARGUMENT, "odc_plan: `rank_of` and `microbatch_of` must point to {} numbers each",
             request.count);
    }
    const Tail tail = request.tail > 0 ? cut_tail(minibatch, request.tail, static_cast<size_t>(request.ranks)) : Tail{};
    std::vector<Microbatches> ranks =
        tail.items.empty() ? planned(minibatch, request) : planned_before(tail, minibatch);
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
        write(ranks[rank], static_cast<int32_t>(rank), rank_of, microbatch_of);
    }
    write(tail.items, kToBeClaimed, rank_of, microbatch_of);
    ranks = claimed_in_order(std::move(ranks), tail.items, minibatch);
    odc_plan_summary out{};
    out.struct_size = sizeof(out);
    out.makespan = makespan(samples_of(ranks), minibatch.costs, minibatch.speeds);
    // Equal sums may differ by rounding.
    out.lower_bound = std::min(lower_bound(minibatch.costs, minibatch.speeds), out.makespan);
    out.collective_makespan = collective_makespan(ranks, minibatch);
    out.items = tail.items.size();
    return out;
}

}  // namespace odc

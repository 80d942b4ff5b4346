// SPDX-License-Identifier: Apache-2.0
#include "planner/window.h"

#include "planner/lookahead.h"
#include "planner/minibatch.h"
#include "planner/plan.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace odc {

namespace {

constexpr int32_t kMostMinibatches = 16;
constexpr double kMoved = 0.2;         // share of the samples
constexpr double kDisplacement = 0.5;  // mean over all samples

void check(const odc_window_request &window, const odc_plan_request &samples) {
    if (window.minibatches < 1 || window.minibatches > kMostMinibatches) {
        fail(ODC_ERROR_ARGUMENT, "odc_plan_window: `minibatches` is {}; a window has 1 to {}", window.minibatches,
             kMostMinibatches);
    }
    if (window.order != ODC_WINDOW_EXCHANGED && window.order != ODC_WINDOW_SORTED) {
        fail(ODC_ERROR_ARGUMENT, "odc_plan_window: there is no order {}; see odc_window_order in odc.h", window.order);
    }
    if (!(window.most_moved >= 0 && window.most_moved <= 1)) {
        fail(ODC_ERROR_ARGUMENT,
             "odc_plan_window: `most_moved` is {:g}; it is a share of the samples, from 0 (the default of {:g}) to 1",
             window.most_moved, kMoved);
    }
    if (!(window.most_displacement >= 0 && window.most_displacement <= kMostMinibatches)) {
        fail(ODC_ERROR_ARGUMENT,
             "odc_plan_window: `most_displacement` is {:g}; it is a mean number of minibatches, from 0 (the default of "
             "{:g}) to {}",
             window.most_displacement, kDisplacement, kMostMinibatches);
    }
    if (samples.speeds != nullptr || samples.tail != 0) {
        fail(
            ODC_ERROR_ARGUMENT,
            "odc_plan_window: {} is for odc_plan: let the window choose each minibatch's samples, then plan those with it",
            samples.speeds != nullptr ? "`speeds`" : "a `tail`");
    }
    const auto minibatches = static_cast<uint64_t>(window.minibatches);
    if (window.counts == nullptr && samples.count % minibatches != 0) {
        fail(ODC_ERROR_ARGUMENT,
             "odc_plan_window: {} samples are not equally many for each of {} minibatches; give `counts`",
             samples.count, minibatches);
    }
}

// The samples in their order.
Window given_window(const odc_window_request &window, uint64_t samples) {
    const auto minibatches = static_cast<uint64_t>(window.minibatches);
    Window out;
    uint64_t begin = 0;
    for (uint64_t i = 0; i < minibatches; ++i) {
        const uint64_t count = window.counts == nullptr ? samples / minibatches : window.counts[i];
        if (count == 0 || count > samples - begin) {
            fail(ODC_ERROR_ARGUMENT,
                 "odc_plan_window: minibatch {} has {} samples, of {} that are left; each must have one or more", i,
                 count, samples - begin);
        }
        Samples &one = out.emplace_back(count);
        std::iota(one.begin(), one.end(), static_cast<uint32_t>(begin));
        begin += count;
    }
    if (begin != samples) {
        fail(ODC_ERROR_ARGUMENT, "odc_plan_window: `counts` are {} samples in all, `count` is {}", begin, samples);
    }
    return out;
}

struct PlannedMinibatch {
    Samples samples;  // in ascending order
    odc_plan_summary summary{};
    std::vector<int32_t> rank_of;
    std::vector<int32_t> microbatch_of;
};
using PlannedWindow = std::vector<PlannedMinibatch>;

PlannedMinibatch planned(Samples minibatch, const odc_plan_request &samples) {
    std::vector<uint64_t> lengths;
    for (const uint32_t sample : minibatch) {
        lengths.push_back(samples.lengths[sample]);
    }
    odc_plan_request request = samples;
    request.lengths = lengths.data();
    request.count = lengths.size();
    PlannedMinibatch out{
        std::move(minibatch), {}, std::vector<int32_t>(lengths.size()), std::vector<int32_t>(lengths.size())};
    out.summary = plan(request, out.rank_of.data(), out.microbatch_of.data());
    return out;
}

// `known`: plans of the window in another order, or none.
PlannedWindow planned(const Window &window, const odc_plan_request &samples, const PlannedWindow &known) {
    PlannedWindow out;
    for (size_t i = 0; i < window.size(); ++i) {
        Samples minibatch = window[i];
        std::sort(minibatch.begin(), minibatch.end());
        if (i < known.size() && known[i].samples == minibatch) {
            out.push_back(known[i]);
            continue;
        }
        try {
            out.push_back(planned(std::move(minibatch), samples));
        } catch (const Error &error) {
            throw Error(error.status(), formatted("minibatch {} of the window: {}", i, error.what()));
        }
    }
    return out;
}

double sum_of(const PlannedWindow &window, double odc_plan_summary::*time) {
    return std::accumulate(window.begin(), window.end(), 0.0,
                           [&](double sum, const PlannedMinibatch &one) { return sum + one.summary.*time; });
}

// The standard deviation of a minibatch's tokens over their mean.
double token_variation(const Window &window, const uint64_t *lengths) {
    std::vector<double> tokens;
    for (const Samples &samples : window) {
        tokens.push_back(std::accumulate(samples.begin(), samples.end(), 0.0, [&](double sum, uint32_t sample) {
            return sum + static_cast<double>(lengths[sample]);
        }));
    }
    const auto count = static_cast<double>(tokens.size());
    const double mean = std::accumulate(tokens.begin(), tokens.end(), 0.0) / count;
    double squares = 0;
    for (const double one : tokens) {
        squares += (one - mean) * (one - mean);
    }
    return std::sqrt(squares / count) / mean;
}

MoveLimits limits_of(const odc_window_request &window) {
    return {window.most_moved == 0 ? kMoved : window.most_moved,
            window.most_displacement == 0 ? kDisplacement : window.most_displacement};
}

}  // namespace

odc_window_summary plan_window(const odc_window_request &window, const odc_plan_request &samples, int32_t *minibatch_of,
                               int32_t *rank_of, int32_t *microbatch_of) {
    const Minibatch all = odc::minibatch_of(samples);
    check(window, samples);
    if (minibatch_of == nullptr || rank_of == nullptr || microbatch_of == nullptr) {
        fail(ODC_ERROR_ARGUMENT,
             "odc_plan_window: `minibatch_of`, `rank_of` and `microbatch_of` must point to {} numbers each",
             samples.count);
    }
    const Window before = given_window(window, samples.count);
    const bool collective = samples.policy == ODC_LB_MICRO || samples.policy == ODC_SORTED_ROWS;
    Window after = window.order == ODC_WINDOW_SORTED ? sorted(before, all.costs)
                                                     : exchanged(before, all.costs, all.ranks, limits_of(window));
    // Collectives gain from sorting, which makes microbatches alike; for ODC a window that gains nothing need not be planned again.
    if (!collective && !is_less(estimate(after, all.costs, all.ranks), estimate(before, all.costs, all.ranks))) {
        after = before;
    }
    const PlannedWindow planned_before = planned(before, samples, {});
    PlannedWindow made = planned_before;
    try {
        made = planned(after, samples, planned_before);
    } catch (const Error &error) {
        if (error.status() != ODC_ERROR_ARGUMENT) {
            throw;
        }
        after = before;  // collectives need equally many microbatches, which the other samples do not allow
    }
    const auto time = collective ? &odc_plan_summary::collective_makespan : &odc_plan_summary::makespan;
    if (sum_of(made, time) >= sum_of(planned_before, time)) {
        after = before;
        made = planned_before;
    }
    for (size_t minibatch = 0; minibatch < made.size(); ++minibatch) {
        const PlannedMinibatch &one = made[minibatch];
        for (size_t i = 0; i < one.samples.size(); ++i) {
            minibatch_of[one.samples[i]] = static_cast<int32_t>(minibatch);
            rank_of[one.samples[i]] = one.rank_of[i];
            microbatch_of[one.samples[i]] = one.microbatch_of[i];
        }
    }
    const Moves moves = moves_between(before, after, samples.count);
    const auto count = static_cast<double>(samples.count);
    double tokens = 0;
    for (uint64_t i = 0; i < samples.count; ++i) {
        tokens += static_cast<double>(samples.lengths[i]);
    }
    odc_window_summary out{};
    out.struct_size = sizeof(out);
    out.makespan = sum_of(made, &odc_plan_summary::makespan);
    out.makespan_before = sum_of(planned_before, &odc_plan_summary::makespan);
    out.collective_makespan = sum_of(made, &odc_plan_summary::collective_makespan);
    out.collective_makespan_before = sum_of(planned_before, &odc_plan_summary::collective_makespan);
    // Equal sums may differ by rounding.
    out.lower_bound = std::min(least_time(before, all.costs, all.ranks), out.makespan);
    out.moved = static_cast<double>(moves.moved) / count;
    out.displacement = static_cast<double>(moves.displacement) / count;
    out.token_variation = token_variation(after, samples.lengths);
    out.token_variation_before = token_variation(before, samples.lengths);
    out.tokens = tokens / static_cast<double>(window.minibatches);
    return out;
}

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
#include "planner/minibatch.h"

#include "planner/cost_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace odc {

namespace {

void check_claims(const odc_plan_request &request) {
    if (!(request.tail >= 0 && request.tail <= 1)) {
        fail(ODC_ERROR_ARGUMENT,
             "odc_plan: `tail` is {:g}; it is the share of the cost that is left to be claimed, from 0 to 1",
             request.tail);
    }
    if (request.policy == ODC_LB_MINI) {
        return;
    }
    if (request.tail > 0) {
        fail(ODC_ERROR_ARGUMENT,
             "odc_plan: only LB-Mini leaves a `tail` to be claimed; the other policies give every sample to a rank");
    }
    if (request.speeds) {
        fail(ODC_ERROR_ARGUMENT, "odc_plan: only LB-Mini uses `speeds`; leave them NULL, or plan with LB-Mini");
    }
}

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
    if (request.policy < ODC_LOCAL_SORT || request.policy > ODC_SORTED_ROWS) {
        fail(ODC_ERROR_ARGUMENT, "odc_plan: there is no policy {}; see odc_policy in odc.h", request.policy);
    }
    if (request.max_tokens == 0) {
        fail(ODC_ERROR_ARGUMENT, "odc_plan: `max_tokens` is 0; a microbatch must be allowed at least one token");
    }
    if (!(request.a >= 0 && request.b >= 0 && std::isfinite(request.a) && std::isfinite(request.b))) {
        fail(ODC_ERROR_ARGUMENT, "odc_plan: the cost coefficients a={:g} and b={:g} must be finite and not negative",
             request.a, request.b);
    }
    check_claims(request);
}

// Relative to their mean; equal ones if none are given.
std::vector<double> speeds_of(const odc_plan_request &request, double total_cost) {
    const auto ranks = static_cast<size_t>(request.ranks);
    const size_t used = std::min<size_t>(ranks, request.count);
    if (!request.speeds) {
        return std::vector<double>(used, 1.0);
    }
    std::vector<double> out(request.speeds, request.speeds + ranks);
    for (size_t rank = 0; rank < ranks; ++rank) {
        if (!(out[rank] > 0 && std::isfinite(out[rank]))) {
            fail(ODC_ERROR_ARGUMENT, "odc_plan: the speed of rank {} is {:g}; it must be finite and above 0", rank,
                 out[rank]);
        }
    }
    const auto [slowest, fastest] = std::minmax_element(out.begin(), out.end());
    if (*slowest == *fastest) {
        return std::vector<double>(used, 1.0);
    }
    const double mean = std::accumulate(out.begin(), out.end(), 0.0) / static_cast<double>(ranks);
    // A bound of everything that is computed with the speeds.
    const double most = total_cost * (*fastest / *slowest) * static_cast<double>(ranks);
    if (!std::isfinite(mean) || !std::isfinite(most)) {
        fail(ODC_ERROR_ARGUMENT,
             "odc_plan: speeds from {:g} to {:g} give times beyond a double's range; choose speeds nearer to 1",
             *slowest, *fastest);
    }
    for (double &speed : out) {
        speed /= mean;
    }
    return out;
}

}  // namespace

double Minibatch::cost(const Samples &some) const {
    return std::accumulate(some.begin(), some.end(), 0.0,
                           [&](double sum, uint32_t sample) { return sum + costs[sample]; });
}

bool Minibatch::equally_fast() const {
    return std::all_of(speeds.begin(), speeds.end(), [](double speed) { return speed == 1; });
}

Minibatch Minibatch::part(const Samples &some) const {
    Minibatch out{{}, max_tokens, {}, ranks, speeds};
    for (const uint32_t sample : some) {
        out.lengths.push_back(lengths[sample]);
        out.costs.push_back(costs[sample]);
    }
    return equally_fast() ? out.with_equal_speeds() : out;
}

Minibatch Minibatch::with_equal_speeds() const {
    Minibatch out = *this;
    out.ranks = std::min(ranks, samples());
    out.speeds.assign(out.ranks, 1.0);
    return out;
}

Minibatch minibatch_of(const odc_plan_request &request) {
    check(request);
    Minibatch out{{request.lengths, request.lengths + request.count}, request.max_tokens, {}, 0, {}};
    const CostModel cost{request.a, request.b};
    double total = 0;
    out.costs.reserve(request.count);
    for (uint64_t i = 0; i < request.count; ++i) {
        const uint64_t tokens = request.lengths[i];
        if (tokens == 0 || tokens > request.max_tokens) {
            fail(ODC_ERROR_ARGUMENT,
                 "odc_plan: sample {} has {} tokens; it must have at least 1 and at most max_tokens={}", i, tokens,
                 request.max_tokens);
        }
        out.costs.push_back(cost(tokens));
        total += out.costs.back();
        if (out.costs.back() <= 0 || !std::isfinite(total)) {
            fail(ODC_ERROR_ARGUMENT,
                 "odc_plan: a={:g} and b={:g} give sample {} of {} tokens a cost beyond a double's range; choose "
                 "coefficients nearer to 1",
                 request.a, request.b, i, tokens);
        }
    }
    out.speeds = speeds_of(request, total);
    out.ranks = out.speeds.size();
    return out;
}

}  // namespace odc

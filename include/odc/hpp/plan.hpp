// SPDX-License-Identifier: Apache-2.0
// Balancing a minibatch over ranks and microbatches; needs no context.
#ifndef ODC_HPP_PLAN_HPP
#define ODC_HPP_PLAN_HPP
#include <string>
#include <vector>

#include "library.hpp"

namespace odc {
inline namespace ODC_ABI {

enum class Policy : int32_t {
    LocalSort = ODC_LOCAL_SORT,  // rank r takes samples r, r+W, ...; sorted; one sample a microbatch
    LbMicro = ODC_LB_MICRO,      // equal sample counts and equal microbatch counts: what collectives need
    LbMini = ODC_LB_MINI,        // only the minibatch is balanced; microbatch counts differ: needs ODC
    SortedRows =
        ODC_SORTED_ROWS  // equal microbatch counts, those of similar cost run together: the best for collectives
};

// A sample of s tokens costs a*x*x + b*x, x = s/32000; by default a cost linear in its length.
struct Cost {
    double a = 0, b = 1;

    // The cost of "linear", "1.5b" or "7b".
    template <class... S, class = detail::Trailing<S...>>
    static Cost of_model(const std::string &name, S &...status) noexcept(detail::kQuiet<S...>) {
        return detail::guard(
            [&] {
                Cost cost;
                const char *model = nullptr;
                if (check_library(status...) && detail::to_c(name, "the model's name", model, status...)) {
                    detail::check(odc_plan_cost(model == nullptr ? "" : model, &cost.a, &cost.b), status...);
                }
                return cost;
            },
            status...);
    }
};

struct Plan {
    std::vector<std::vector<std::vector<size_t>>> ranks;  // each rank's microbatches, in order, of samples by index
    double makespan = 0;                                  // the cost of the costliest rank
    double lower_bound = 0;                               // a lower bound for these samples and ranks
    double collective_makespan = 0;          // if ranks wait for each other after each microbatch, as collectives do
    std::vector<std::vector<size_t>> items;  // left to be claimed: microbatches, the costliest first
};

namespace detail {

inline odc_plan_request plan_request(span<const uint64_t> lengths, int32_t ranks, uint64_t max_tokens, Policy policy,
                                     Cost cost) {
    auto request = sized<odc_plan_request>();
    request.lengths = lengths.data();
    request.count = lengths.size();
    request.max_tokens = max_tokens;
    request.a = cost.a;
    request.b = cost.b;
    request.ranks = ranks;
    request.policy = static_cast<int32_t>(policy);
    return request;
}

inline void assign(std::vector<std::vector<size_t>> &mine, size_t sample, int32_t microbatch) {
    const auto index = static_cast<size_t>(microbatch);
    mine.resize(mine.size() > index ? mine.size() : index + 1);
    mine[index].push_back(sample);
}

template <class... S>
Plan planned(const odc_plan_request &request, S &...status) noexcept(kQuiet<S...>) {
    return guard(
        [&] {
            Plan made;
            std::vector<int32_t> rank_of(request.count + 1), microbatch_of(request.count + 1);
            auto summary = sized<odc_plan_summary>();
            if (!check(odc_plan(&request, rank_of.data(), microbatch_of.data(), &summary), status...)) {
                return made;
            }
            made.ranks.resize(static_cast<size_t>(request.ranks));
            for (size_t sample = 0; sample < request.count; ++sample) {
                const int32_t rank = rank_of[sample];
                assign(rank < 0 ? made.items : made.ranks[static_cast<size_t>(rank)], sample, microbatch_of[sample]);
            }
            made.makespan = summary.makespan;
            made.lower_bound = summary.lower_bound;
            made.collective_makespan = summary.collective_makespan;
            return made;
        },
        status...);
}

}  // namespace detail

// Divides samples of these lengths (tokens, each in 1..max_tokens) over ranks, into microbatches of at most max_tokens.
// Deterministic.
template <class... S, class = detail::Trailing<S...>>
Plan plan(span<const uint64_t> lengths, int32_t ranks, uint64_t max_tokens, Policy policy, Cost cost,
          S &...status) noexcept(detail::kQuiet<S...>) {
    return check_library(status...)
               ? detail::planned(detail::plan_request(lengths, ranks, max_tokens, policy, cost), status...)
               : Plan();
}

// By LB-Mini for ranks of these speeds, one for each, as Context::speeds has them, and with the cheapest samples, up to `tail` of
// the cost, left to be claimed: Plan::items. Costs are divided by a rank's speed, relative to the mean.
template <class... S, class = detail::Trailing<S...>>
Plan plan_by_speed(span<const uint64_t> lengths, span<const double> speeds, uint64_t max_tokens, Cost cost, double tail,
                   S &...status) noexcept(detail::kQuiet<S...>) {
    const int32_t ranks = speeds.size() > INT32_MAX ? INT32_MAX : static_cast<int32_t>(speeds.size());
    auto request = detail::plan_request(lengths, ranks, max_tokens, Policy::LbMini, cost);
    request.speeds = speeds.data();
    request.tail = tail;
    return check_library(status...) ? detail::planned(request, status...) : Plan();
}

enum class WindowOrder : int32_t {
    Exchanged = ODC_WINDOW_EXCHANGED,  // the few exchanges between minibatches that save most, within the limits
    Sorted = ODC_WINDOW_SORTED         // by cost, the costliest first: nearly all samples move, which changes training
};

struct Lookahead {
    WindowOrder order = WindowOrder::Exchanged;
    double most_moved = 0.2;         // share of the samples that may change their minibatch; 0 is 0.2, too
    double most_displacement = 0.5;  // by how many minibatches a sample moves, mean over all; 0 is 0.5, too
};

struct WindowPlan {
    // minibatches[m][rank]: the rank's microbatches of minibatch m, in order; each lists samples by their index in the window.
    std::vector<std::vector<std::vector<std::vector<size_t>>>> minibatches;
    odc_window_summary summary = {};  // see odc.h
};

// Plans several minibatches together: with few samples a rank it moves some between minibatches, so that long ones meet in one
// and the others are short. `lengths`: of all samples of the window, in the order of the data; `counts`: of each minibatch,
// which stays. Never slower than plan() on each minibatch by itself. Deterministic.
template <class... S, class = detail::Trailing<S...>>
WindowPlan plan_window(span<const uint64_t> lengths, span<const uint64_t> counts, int32_t ranks, uint64_t max_tokens,
                       Policy policy, Cost cost, Lookahead lookahead, S &...status) noexcept(detail::kQuiet<S...>) {
    return detail::guard(
        [&] {
            WindowPlan made;
            if (!check_library(status...)) {
                return made;
            }
            const auto samples = detail::plan_request(lengths, ranks, max_tokens, policy, cost);
            auto request = detail::sized<odc_window_request>();
            request.samples = &samples;
            request.counts = counts.data();
            request.most_moved = lookahead.most_moved;
            request.most_displacement = lookahead.most_displacement;
            request.minibatches = counts.size() > INT32_MAX ? INT32_MAX : static_cast<int32_t>(counts.size());
            request.order = static_cast<int32_t>(lookahead.order);
            std::vector<int32_t> minibatch_of(lengths.size() + 1), rank_of(lengths.size() + 1),
                microbatch_of(lengths.size() + 1);
            made.summary = detail::sized<odc_window_summary>();
            if (!detail::check(
                    odc_plan_window(&request, minibatch_of.data(), rank_of.data(), microbatch_of.data(), &made.summary),
                    status...)) {
                return made;
            }
            made.minibatches.assign(counts.size(), decltype(Plan::ranks)(static_cast<size_t>(ranks)));
            for (size_t sample = 0; sample < lengths.size(); ++sample) {
                detail::assign(
                    made.minibatches[static_cast<size_t>(minibatch_of[sample])][static_cast<size_t>(rank_of[sample])],
                    sample, microbatch_of[sample]);
            }
            return made;
        },
        status...);
}

}  // namespace ODC_ABI
}  // namespace odc
#endif

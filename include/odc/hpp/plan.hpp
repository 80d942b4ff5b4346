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
    LbMini = ODC_LB_MINI         // only the minibatch is balanced; microbatch counts differ: needs ODC
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
};

// Divides samples of these lengths (tokens, each in 1..max_tokens) over ranks, into microbatches of at most max_tokens.
// Deterministic.
template <class... S, class = detail::Trailing<S...>>
Plan plan(span<const uint64_t> lengths, int32_t ranks, uint64_t max_tokens, Policy policy, Cost cost,
          S &...status) noexcept(detail::kQuiet<S...>) {
    return detail::guard(
        [&] {
            Plan made;
            if (!check_library(status...)) {
                return made;
            }
            auto request = detail::sized<odc_plan_request>();
            request.lengths = lengths.data();
            request.count = lengths.size();
            request.max_tokens = max_tokens;
            request.a = cost.a;
            request.b = cost.b;
            request.ranks = ranks;
            request.policy = static_cast<int32_t>(policy);
            std::vector<int32_t> rank_of(lengths.size() + 1), microbatch_of(lengths.size() + 1);
            auto summary = detail::sized<odc_plan_summary>();
            if (!detail::check(odc_plan(&request, rank_of.data(), microbatch_of.data(), &summary), status...)) {
                return made;
            }
            made.ranks.resize(static_cast<size_t>(ranks));
            for (size_t sample = 0; sample < lengths.size(); ++sample) {
                auto &mine = made.ranks[static_cast<size_t>(rank_of[sample])];
                const auto microbatch = static_cast<size_t>(microbatch_of[sample]);
                mine.resize(mine.size() > microbatch ? mine.size() : microbatch + 1);
                mine[microbatch].push_back(sample);
            }
            made.makespan = summary.makespan;
            made.lower_bound = summary.lower_bound;
            return made;
        },
        status...);
}

}  // namespace ODC_ABI
}  // namespace odc
#endif

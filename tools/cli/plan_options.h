// SPDX-License-Identifier: Apache-2.0
// The options that `odc plan` and `odc replay` share: a cost model, a policy, and what lookahead may do.
#pragma once

#include <odc/odc.h>

#include <cstdint>
#include <string>
#include <vector>

// CLI11 takes seconds to compile, and most who include this only read the values.
namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace odc_tool {

// A sample of s tokens costs a*x*x + b*x, x = s/32000.
struct Cost {
    double a;
    double b;

    double of(uint64_t tokens) const {
        const double x = static_cast<double>(tokens) / 32000;
        return a * x * x + b * x;
    }
};

// "linear", "1.5b", "7b", or "A,B". Throws Exit{2, ...}, as parse_policy does.
Cost parse_cost(const std::string &text);

// "local-sort", "lb-micro", "lb-mini" or "sorted-rows", as odc_policy.
int32_t parse_policy(const std::string &name);
const char *policy_name(int32_t policy);

// A request for one minibatch. `lengths` must outlive it.
odc_plan_request plan_request(const std::vector<uint64_t> &lengths, uint64_t max_tokens, const Cost &cost,
                              int32_t ranks, int32_t policy);

struct WindowOptions {
    bool sorted = false;
    double most_moved = 0.2;
    double most_displacement = 0.5;

    // Without samples.
    odc_window_request request() const;
};

// --most-moved, --most-displacement and --sorted, which need `lookahead`.
void add_window_options(CLI::App *verb, WindowOptions &options, CLI::Option *lookahead);

}  // namespace odc_tool

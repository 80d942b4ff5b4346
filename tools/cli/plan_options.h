// SPDX-License-Identifier: Apache-2.0
// How `odc plan` and `odc replay` parse a cost model and a policy.
#pragma once

#include <cstdint>
#include <string>

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

// "local-sort", "lb-micro" or "lb-mini", as odc_policy.
int32_t parse_policy(const std::string &name);
const char *policy_name(int32_t policy);

}  // namespace odc_tool

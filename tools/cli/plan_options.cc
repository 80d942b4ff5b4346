// SPDX-License-Identifier: Apache-2.0
// Cost models and policies by name.
#include "cli/plan_options.h"

#include "cli/exit.h"

#include <odc/odc.h>

#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

namespace odc_tool {

namespace {

struct Policy {
    const char *name;
    int32_t value;
};
constexpr std::array<Policy, 3> kPolicies = {{
    {"local-sort", ODC_LOCAL_SORT},
    {"lb-micro", ODC_LB_MICRO},
    {"lb-mini", ODC_LB_MINI},
}};

bool parse_coefficient(std::string_view text, double &out) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return error == std::errc() && end == text.data() + text.size() && std::isfinite(out) && out >= 0;
}

}  // namespace

Cost parse_cost(const std::string &text) {
    Cost cost{};
    if (odc_plan_cost(text.c_str(), &cost.a, &cost.b) == ODC_OK) {
        return cost;
    }
    const size_t comma = text.find(',');
    const std::string_view all = text;
    if (comma == std::string::npos || !parse_coefficient(all.substr(0, comma), cost.a) ||
        !parse_coefficient(all.substr(comma + 1), cost.b) || (cost.a == 0 && cost.b == 0)) {
        throw Exit{2, "--cost " + text +
                          ": give linear, 1.5b, 7b, or two numbers A,B that are not negative nor both "
                          "zero (a sample of s tokens costs A*x*x + B*x, x = s/32000)"};
    }
    return cost;
}

int32_t parse_policy(const std::string &name) {
    for (const Policy &policy : kPolicies) {
        if (name == policy.name) {
            return policy.value;
        }
    }
    throw Exit{2, "--policy " + name + ": give local-sort, lb-micro or lb-mini"};
}

const char *policy_name(int32_t policy) {
    for (const Policy &known : kPolicies) {
        if (policy == known.value) {
            return known.name;
        }
    }
    return "unknown";
}

}  // namespace odc_tool

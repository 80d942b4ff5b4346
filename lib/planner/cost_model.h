// SPDX-License-Identifier: Apache-2.0
// What a sample costs, by its tokens.
#pragma once

#include <cstdint>
#include <string_view>

namespace odc {

// a x^2 + b x, x = tokens / 32000. Zero a and b mean linear.
struct CostModel {
    double a;
    double b;

    double operator()(uint64_t tokens) const;
};

// See odc_plan_cost. Throws ODC_ERROR_ARGUMENT.
CostModel cost_model(std::string_view name);

}  // namespace odc

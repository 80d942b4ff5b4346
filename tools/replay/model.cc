// SPDX-License-Identifier: Apache-2.0
// The models of the paper (DeepSeek-R1-Distill-Qwen): layers, elements of a layer, and the cost of a sample. Without the
// embedding, which is gathered once a microbatch and is hidden behind compute in both schedules.
#include "cli/exit.h"
#include "replay/settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace odc_tool {
namespace {

struct Row {
    const char *name;
    int layers;
    uint64_t layer_elements;
    int hidden;
    const char *fit;  // the cost model that the paper's authors fitted on GPUs
};

constexpr Row k7b{"7b", 28, 233'057'792, 3584, "7b"};
constexpr std::array<Row, 4> kModels{{
    {"1.5b", 28, 46'797'824, 1536, "1.5b"},
    k7b,
    {"14b", 48, 275'268'608, 5120, nullptr},
    {"32b", 64, 487'605'248, 5120, nullptr},
}};

// Without a fitted cost model, 7b's is scaled: attention (the x² part) by layers × hidden size, the matrix products (the x
// part) by the parameters.
Cost cost_of(const Row &row) {
    if (row.fit != nullptr) {
        return parse_cost(row.fit);
    }
    const Cost base = parse_cost(k7b.fit);
    const double attention = double(row.layers) * row.hidden / (double(k7b.layers) * k7b.hidden);
    const double products =
        double(row.layers) * double(row.layer_elements) / (double(k7b.layers) * double(k7b.layer_elements));
    return {base.a * attention, base.b * products};
}

}  // namespace

uint64_t scaled_layer(const Model &model, uint64_t scale) {
    return std::max<uint64_t>(1, model.layer_elements / scale);
}

Model find_model(const std::string &name) {
    std::vector<const char *> known;
    for (const Row &row : kModels) {
        if (name == row.name) {
            return {row.name, row.layers, row.layer_elements, cost_of(row)};
        }
        known.push_back(row.name);
    }
    throw Exit{2, fmt::format("there is no model \"{}\"; --model knows {}", name, fmt::join(known, ", "))};
}

}  // namespace odc_tool

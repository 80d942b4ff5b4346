// SPDX-License-Identifier: Apache-2.0
// Registers, updates, publishes, gathers, adds to and checks the shards of the emulated model.
#include "replay/shards.h"

#include "cli/exit.h"
#include "rank/context.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace odc_tool {
namespace {

constexpr int32_t kModulus = 128;  // parameters are integers below it: exact in bf16
constexpr uint64_t kProbes = 32;
constexpr float kLargestSum = 0x1p30F;  // exact sums then have units of 2^-21, and gradients are integers

uint16_t to_bf16(int32_t value) {
    return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16);
}

int32_t from_bf16(uint16_t value) {
    return static_cast<int32_t>(std::bit_cast<float>(static_cast<uint32_t>(value) << 16));
}

uint64_t weight_of(uint64_t element) { return 1 + element % kLargestWeight; }

}  // namespace

ModelShards::ModelShards(odc_context *context, int layers, uint64_t layer_elements, int32_t sum)
    : context_(context), layers_(static_cast<size_t>(layers)), weights_(layer_elements) {
    std::vector<std::string> names;
    for (int layer = 0; layer < layers; ++layer) {
        names.push_back(fmt::format("layer {}", layer));
    }
    std::vector<odc_shard_desc> descs(layers_.size());
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
        descs[layer].struct_size = sizeof(odc_shard_desc);
        descs[layer].name = names[layer].c_str();
        descs[layer].numel = layer_elements;
        descs[layer].parameter_type = ODC_BF16;
        descs[layer].gradient_type = ODC_F32;
        descs[layer].sum = sum;
        descs[layer].largest = sum == ODC_SUM_EXACT ? kLargestSum : 0;
    }
    std::vector<odc_shard *> shards(layers_.size());
    check(odc_register_shards(context, descs.data(), descs.size(), shards.data()));
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
        odc_slice slice{};
        slice.struct_size = sizeof slice;
        check(odc_get_slice(shards[layer], &slice));
        layers_[layer].shard = shards[layer];
        layers_[layer].parameters = static_cast<uint16_t *>(slice.parameters);
        layers_[layer].gradients = static_cast<float *>(slice.gradients);
        offset_ = slice.offset;
        numel_ = slice.numel;
    }
    const auto size = static_cast<uint64_t>(odc_size(context));
    const uint64_t chunk = (layer_elements + size - 1) / size;
    for (uint64_t begin = 0; begin < layer_elements; begin += chunk) {
        probes_.push_back(begin);
        probes_.push_back(std::min(begin + chunk, layer_elements) - 1);
    }
    for (uint64_t i = 0; i < kProbes; ++i) {
        probes_.push_back(layer_elements * i / kProbes);
    }
    for (auto &full : full_parameters_) {
        full.resize(layer_elements);
    }
    for (auto &full : full_gradients_) {
        full.resize(layer_elements);
    }
    for (uint64_t element = 0; element < layer_elements; ++element) {
        weights_[element] = static_cast<float>(weight_of(element));
    }
    write_first_parameters();
}

uint16_t ModelShards::expected_parameter(size_t layer, uint64_t element) const {
    const uint64_t first = element + 17 * layer;
    const uint64_t value = first - layers_[layer].added * weight_of(element);  // modulo 2^64, a multiple of kModulus
    return to_bf16(static_cast<int32_t>(value % kModulus));
}

void ModelShards::write_first_parameters() {
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
        for (uint64_t i = 0; i < numel_; ++i) {
            layers_[layer].parameters[i] = expected_parameter(layer, offset_ + i);
        }
    }
}

void ModelShards::update_and_publish() {
    for (Layer &layer : layers_) {
        if (numel_ > 0) {
            uint16_t *parameters = layer.parameters;
            const float *gradients = layer.gradients;
            for (uint64_t i = 0; i < numel_; ++i) {
                const int32_t updated = from_bf16(parameters[i]) - static_cast<int32_t>(gradients[i]);
                parameters[i] = to_bf16(updated & (kModulus - 1));
            }
            check(odc_publish(layer.shard, nullptr));
        }
        layer.added += layer.last;
    }
}

void ModelShards::gather(int layer, size_t buffer) {
    std::vector<uint16_t> &full = full_parameters_[buffer];
    check(odc_gather(layers_[static_cast<size_t>(layer)].shard, full.data(), full.size(), nullptr));
    check_parameters(layer, full);
}

void ModelShards::check_parameters(int layer, const std::vector<uint16_t> &full) const {
    for (uint64_t element : probes_) {
        const uint16_t expected = expected_parameter(static_cast<size_t>(layer), element);
        if (full[element] != expected) {
            throw Exit{1, fmt::format("layer {}: gathered parameter {} is {} and must be {}", layer, element,
                                      from_bf16(full[element]), from_bf16(expected))};
        }
    }
}

void ModelShards::make_gradient(uint32_t gradient) {
    made_ = 1 - made_;
    std::vector<float> &full = full_gradients_[made_];
    const auto factor = static_cast<float>(gradient);
    for (size_t i = 0; i < full.size(); ++i) {
        full[i] = factor * weights_[i];
    }
}

void ModelShards::scatter_add(int layer) {
    const std::vector<float> &full = full_gradients_[made_];
    check(odc_scatter_add(layers_[static_cast<size_t>(layer)].shard, full.data(), full.size(), nullptr));
}

void ModelShards::finish(int layer) { check(odc_finish(layers_[static_cast<size_t>(layer)].shard, nullptr)); }

void ModelShards::start_gather(int layer, size_t buffer) {
    std::vector<uint16_t> &full = full_parameters_[buffer];
    check(odc_gather_start(layers_[static_cast<size_t>(layer)].shard, full.data(), full.size(), nullptr, &gather_));
}

void ModelShards::end_gather(int layer, size_t buffer) {
    check(odc_wait(context_, gather_));
    check_parameters(layer, full_parameters_[buffer]);
}

void ModelShards::start_scatter_add(int layer) {
    const std::vector<float> &full = full_gradients_[made_];
    check(odc_scatter_add_start(layers_[static_cast<size_t>(layer)].shard, full.data(), full.size(), nullptr,
                                &addition_));
}

void ModelShards::end_scatter_add() { check(odc_wait(context_, addition_)); }

void ModelShards::check_gradients(const Gradient &total) {
    for (size_t i = 0; i < layers_.size(); ++i) {
        Layer &layer = layers_[i];
        layer.last = total.of_layer(static_cast<int>(i));
        const auto factor = static_cast<float>(layer.last);
        const float *weights = weights_.data() + offset_;
        uint64_t wrong = 0;
        for (uint64_t k = 0; k < numel_; ++k) {
            wrong += layer.gradients[k] != factor * weights[k] ? 1 : 0;
        }
        for (uint64_t k = 0; wrong > 0 && k < numel_; ++k) {
            if (layer.gradients[k] != factor * weights[k]) {
                throw Exit{
                    1, fmt::format("layer {}: {} of {} sums are wrong, the first at element {}: {} instead of {}", i,
                                   wrong, numel_, offset_ + k, layer.gradients[k], factor * weights[k])};
            }
        }
    }
}

}  // namespace odc_tool

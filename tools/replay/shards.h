// SPDX-License-Identifier: Apache-2.0
// The emulated model's state: a shard per layer, parameters bf16, gradients f32. All values are small integers that every rank
// can compute, so each sum and each gathered parameter is checked exactly, not within a tolerance.
#pragma once

#include "replay/schedule.h"

#include <odc/odc.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace odc_tool {

class ModelShards {
public:
    ModelShards(odc_context *context, int layers, uint64_t layer_elements, int32_t sum);  // an odc_summation, or 0

    // The optimizer, layer by layer; each layer is published as soon as it is updated.
    void update_and_publish();
    // Into one of two buffers, so that the next layer can arrive while this one is in use; spot-checked.
    void gather(int layer, size_t buffer);
    // Writes a layer's full gradient into the other of two buffers, as the previous one may still be in use.
    void make_gradient(uint32_t gradient);
    // Adds the gradient that make_gradient wrote last.
    void scatter_add(int layer);
    // This rank adds nothing more to it in the minibatch.
    void finish(int layer);
    // Started and waited for: one gather and one addition may be pending, and are completed before the next one starts.
    void start_gather(int layer, size_t buffer);
    void end_gather(int layer, size_t buffer);
    void start_scatter_add(int layer);
    void end_scatter_add();
    // After sync: checks every element of this rank's accumulators.
    void check_gradients(const Gradient &total);

    odc_context *context() const { return context_; }
    int layers() const { return static_cast<int>(layers_.size()); }

private:
    struct Layer {
        odc_shard *shard = nullptr;
        uint16_t *parameters = nullptr;
        float *gradients = nullptr;
        uint64_t added = 0;  // to each of its gradients, summed over all updates
        uint64_t last = 0;   // the same in the last minibatch
    };

    uint16_t expected_parameter(size_t layer, uint64_t element) const;
    void check_parameters(int layer, const std::vector<uint16_t> &full) const;
    void write_first_parameters();

    odc_context *context_;
    std::vector<Layer> layers_;
    uint64_t offset_ = 0;  // of this rank's slice, the same in each layer
    uint64_t numel_ = 0;
    std::vector<uint64_t> probes_;  // elements that check_parameters checks: both ends of every slice, and some more
    std::vector<float> weights_;    // the gradient of element e is the layer's times weights_[e]
    std::array<std::vector<uint16_t>, 2> full_parameters_;
    std::array<std::vector<float>, 2> full_gradients_;
    size_t made_ = 0;      // the one written last
    uint64_t gather_ = 0;  // the started operation
    uint64_t addition_ = 0;
};

}  // namespace odc_tool

// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_operation.h"

#include "bench/pattern.h"
#include "cli/exit.h"
#include "rank/context.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace odc_tool {

namespace {

constexpr uint64_t kPiece = uint64_t{4} << 20;  // elements on the host at a time

}  // namespace

void fill_gpu(const Gpu &gpu, odc_type type, std::byte *to, uint64_t first, uint64_t count) {
    const size_t element = element_bytes(type);
    std::vector<std::byte> piece(std::min(kPiece, count) * element);
    for (uint64_t i = 0; i < count; i += kPiece) {
        const uint64_t here = std::min(kPiece, count - i);
        fill_pattern(type, piece.data(), first + i, here);
        gpu.copy(to + i * element, piece.data(), here * element);
        gpu.synchronize();
    }
}

void check_gpu(const Gpu &gpu, odc_type type, const std::byte *from, uint64_t first, uint64_t count, uint64_t times,
               const std::string &what) {
    const size_t element = element_bytes(type);
    std::vector<std::byte> piece(std::min(kPiece, count) * element);
    for (uint64_t i = 0; i < count; i += kPiece) {
        const uint64_t here = std::min(kPiece, count - i);
        gpu.copy(piece.data(), from + i * element, here * element);
        gpu.synchronize();
        if (!holds_pattern(type, piece.data(), first + i, here, times)) {
            throw Exit{1, fmt::format("{} on {} are wrong", what, gpu.device())};
        }
    }
}

// ---- GpuTensor ----

GpuTensor::GpuTensor(const Gpu &gpu, const Layout &layout) : gpu_(gpu), layout_(layout), full_(gpu, layout.bytes()) {
    fill_gpu(gpu_, layout_.type(), full(), 0, layout_.numel());
}

void GpuTensor::clear() const {
    gpu_.clear(full(), layout_.bytes());
    gpu_.synchronize();
}

void GpuTensor::check(const std::string &what) const {
    check_gpu(gpu_, layout_.type(), full(), 0, layout_.numel(), 1, what);
}

Contestant parked() {
    return {[] {}, [] {}, [] {}};
}

// ---- GpuGather ----

GpuGather::GpuGather(odc_context *context, const Gpu &gpu, const Layout &layout)
    : context_(context), shard_(register_tensor(context, layout, &odc_shard_desc::parameter_type, ODC_GPU_MEMORY)) {
    const int rank = odc_rank(context_);
    fill_gpu(gpu, layout.type(), static_cast<std::byte *>(slice_of(shard_).parameters), layout.first(rank),
             layout.count(rank));
    check(odc_publish_all(context_, gpu.stream()));
    gpu.synchronize();
}

Contestant GpuGather::contestant(const GpuTensor *tensor) const {
    if (tensor == nullptr) {
        return parked();
    }
    return {
        [tensor] { tensor->clear(); },
        [this, tensor] { check(odc_gather(shard_, tensor->full(), tensor->layout().numel(), tensor->gpu().stream())); },
        [this, tensor] { tensor->check(fmt::format("the bytes that rank {} gathered", odc_rank(context_))); },
        [tensor] { tensor->gpu().synchronize(); }};
}

// ---- GpuAddition ----

GpuAddition::GpuAddition(odc_context *context, const Gpu &gpu, const Layout &layout, int adders, Sums sums)
    : context_(context), gpu_(gpu), layout_(layout), adders_(static_cast<uint64_t>(adders)),
      shard_(register_tensor(context, layout, &odc_shard_desc::gradient_type, ODC_GPU_MEMORY, sums)) {}

void GpuAddition::check_slice() const {
    const int rank = odc_rank(context_);
    const auto *sums = static_cast<const std::byte *>(slice_of(shard_).gradients);
    check_gpu(gpu_, accumulator_of(layout_.type()), sums, layout_.first(rank), layout_.count(rank),
              additions_ * adders_, fmt::format("the sums of rank {}", rank));
}

Contestant GpuAddition::contestant(const GpuTensor *tensor) {
    return {[this] {
                additions_ = 0;
                check(odc_publish_all(context_, gpu_.stream()));
            },
            [this, tensor] {
                ++additions_;
                if (tensor != nullptr) {
                    check(odc_scatter_add(shard_, tensor->full(), layout_.numel(), gpu_.stream()));
                }
            },
            [this] {
                check(odc_minibatch_sync(context_));
                check_slice();
            },
            [this] { gpu_.synchronize(); }};
}

}  // namespace odc_tool

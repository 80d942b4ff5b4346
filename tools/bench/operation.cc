// SPDX-License-Identifier: Apache-2.0
// Gathers and additions of libodc as contestants.
#include "bench/operation.h"

#include "bench/pattern.h"
#include "cli/exit.h"
#include "rank/context.h"

#include <fmt/format.h>

#include <cstring>

namespace odc_tool {

odc_shard *register_tensor(odc_context *context, const Layout &layout, int32_t odc_shard_desc::*half, odc_memory memory,
                           Sums sums) {
    odc_shard_desc desc = {};
    desc.struct_size = sizeof(desc);
    desc.name = sums == Sums::Exact ? "bench exactly" : "bench";
    desc.sum = sums == Sums::Exact ? ODC_SUM_EXACT : 0;
    desc.numel = layout.numel();
    desc.*half = layout.type();
    desc.memory = memory;
    odc_shard *shard = nullptr;
    check(odc_register_shard(context, &desc, &shard));
    return shard;
}

odc_slice slice_of(const odc_shard *shard) {
    odc_slice slice = {};
    slice.struct_size = sizeof(slice);
    check(odc_get_slice(shard, &slice));
    return slice;
}

// ---- Layout, Tensor ----

Layout::Layout(int ranks, uint64_t bytes, odc_type type) : type_(type), numel_(bytes / element_bytes(type)) {
    const auto size = static_cast<uint64_t>(ranks);
    chunk_ = (numel_ + size - 1) / size;
}

Tensor::Tensor(odc_context *context, uint64_t bytes, odc_type type) : Layout(odc_size(context), bytes, type) {
    full_.reset(static_cast<std::byte *>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)));
    if (full_ == nullptr) {
        throw Exit{1, fmt::format("no memory for a buffer of {} bytes", bytes)};
    }
    fill_pattern(type, full_.get(), 0, numel());
}

// ---- Gather ----

Gather::Gather(odc_context *context, const Tensor &tensor)
    : context_(context), tensor_(tensor),
      shard_(register_tensor(context, tensor, &odc_shard_desc::parameter_type, ODC_HOST_MEMORY)) {
    const int rank = odc_rank(context_);
    fill_pattern(tensor_.type(), slice_of(shard_).parameters, tensor_.first(rank), tensor_.count(rank));
    check(odc_publish_all(context_, nullptr));
}

void Gather::check_full() const {
    if (!holds_pattern(tensor_.type(), tensor_.full(), 0, tensor_.numel(), 1)) {
        throw Exit{1, fmt::format("rank {} gathered wrong bytes", odc_rank(context_))};
    }
}

Contestant Gather::contestant() {
    return {[this] { std::memset(tensor_.full(), 0, tensor_.bytes()); },
            [this] { check(odc_gather(shard_, tensor_.full(), tensor_.numel(), nullptr)); }, [this] { check_full(); }};
}

// ---- Addition ----

Addition::Addition(odc_context *context, const Tensor &tensor, Sums sums)
    : context_(context), tensor_(tensor),
      shard_(register_tensor(context, tensor, &odc_shard_desc::gradient_type, ODC_HOST_MEMORY, sums)) {}

void Addition::check_slice() const {
    check_sums(tensor_, odc_rank(context_), odc_size(context_), slice_of(shard_).gradients, additions_);
}

Contestant Addition::contestant() {
    return {[this] {
                additions_ = 0;
                check(odc_publish_all(context_, nullptr));
            },
            [this] {
                ++additions_;
                check(odc_scatter_add(shard_, tensor_.full(), tensor_.numel(), nullptr));
            },
            [this] {
                check(odc_minibatch_sync(context_));
                check_slice();
            }};
}

uint64_t most_additions(int ranks, Sums sums) {
    const uint64_t most = sums == Sums::Exact ? 4096 : (uint64_t{1} << 24) / kLargestElement;
    return std::max<uint64_t>(most / static_cast<uint64_t>(ranks), 2) - 1;
}

void check_sums(const Tensor &tensor, int rank, int ranks, const void *sums, uint64_t additions) {
    if (!holds_pattern(accumulator_of(tensor.type()), sums, tensor.first(rank), tensor.count(rank),
                       additions * static_cast<uint64_t>(ranks))) {
        throw Exit{1, fmt::format("the sums of rank {} are wrong", rank)};
    }
}

}  // namespace odc_tool

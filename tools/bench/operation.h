// SPDX-License-Identifier: Apache-2.0
// The operations of libodc that `odc bench` times, their buffers, and the checks.
#pragma once

#include "bench/limit.h"

#include <odc/odc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>

namespace odc_tool {

// An implementation of an operation. A timing is: `prepare`, one operation untimed, some timed ones, `finish`.
struct Contestant {
    std::function<void()> prepare;
    std::function<void()> operate;
    std::function<void()> finish;
    std::function<void()> synchronize = [] {};  // waits for what `operate` started; timed
};

// How a shard is divided over ranks.
class Layout {
public:
    Layout(int ranks, uint64_t bytes, odc_type type);

    uint64_t first(int rank) const { return std::min(static_cast<uint64_t>(rank) * chunk_, numel_); }
    uint64_t count(int rank) const { return first(rank + 1) - first(rank); }
    uint64_t chunk() const { return chunk_; }
    uint64_t numel() const { return numel_; }
    uint64_t bytes() const { return numel_ * element_bytes(type_); }
    uint64_t bytes_of(int rank) const { return count(rank) * element_bytes(type_); }
    odc_type type() const { return type_; }

private:
    odc_type type_;
    uint64_t numel_;
    uint64_t chunk_;
};

// Shared by libodc and a bare loop: the shard's layout and the caller's full-size buffer.
class Tensor : public Layout {
public:
    Tensor(odc_context *context, uint64_t bytes, odc_type type);

    std::byte *full() const { return full_.get(); }
    std::byte *full_at(int rank) const { return full() + first(rank) * element_bytes(type()); }

private:
    struct Free {
        void operator()(std::byte *memory) const { std::free(memory); }
    };

    std::unique_ptr<std::byte, Free> full_;
};

// How gradients are summed.
enum class Sums { Default, Exact };

// Registers a shard with only the given half.
odc_shard *register_tensor(odc_context *context, const Layout &layout, int32_t odc_shard_desc::*half, odc_memory memory,
                           Sums sums = Sums::Default);
odc_slice slice_of(const odc_shard *shard);

// Both are collective, between sync and publish, and must not outlive the tensor.
class Gather {
public:
    Gather(odc_context *context, const Tensor &tensor);
    Contestant contestant();
    // Checks the result of a gather.
    void check_full() const;

private:
    odc_context *context_;
    const Tensor &tensor_;
    odc_shard *shard_;
};

class Addition {
public:
    Addition(odc_context *context, const Tensor &tensor, Sums sums);
    Contestant contestant();
    // After sync: checks this rank's sums.
    void check_slice() const;

private:
    odc_context *context_;
    const Tensor &tensor_;
    odc_shard *shard_;
    uint64_t additions_ = 0;  // by this rank since publish
};

// With more additions of `ranks` ranks in one minibatch an f32 sum might be rounded, and exact sums take no more.
uint64_t most_additions(int ranks, Sums sums);
// Throws Exit unless `sums` are those of `rank`'s slice after so many additions by each of `ranks` ranks.
void check_sums(const Tensor &tensor, int rank, int ranks, const void *sums, uint64_t additions);

}  // namespace odc_tool

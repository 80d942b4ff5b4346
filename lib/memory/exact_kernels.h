// SPDX-License-Identifier: Apache-2.0
// Additions to exact sums (exact_sum.h) in host memory, and what they are in f32, with the widest vectors of this processor.
#pragma once

#include "memory/exact_sum.h"
#include "memory/host_kernels.h"

#include <cstddef>
#include <cstdint>
#include <string>

namespace odc {

// What was special about the gradients of an addition.
struct Special {
    uint64_t clamped = 0;     // finite and of 2^exponent or more, added as the largest addend of their sign
    uint64_t not_finite = 0;  // their sums are kNotFinite now
};

// Which sums an addition finds: any of them may be kNotFinite, or none is.
enum class Found { Finite, Any };

// Stores or adds `count` gradients of `gradient_type` (f32, bf16, f16). `sums` is aligned to its elements, the gradient need not
// be. `slice_numel`: elements of the whole slice, by which the loop is chosen.
Special add_exactly(Sum sum, Found found, int32_t gradient_type, int exponent, int64_t *sums, const void *gradient,
                    size_t count, uint64_t slice_numel);
Special add_exactly_by(AddLoop loop, Sum sum, Found found, int32_t gradient_type, int exponent, int64_t *sums,
                       const void *gradient, size_t count);

// Stores or adds `count` sums of the same exponent, at any address. Returns whether one of them is kNotFinite, as its sum now is.
bool add_exact_sums(Sum sum, int64_t *sums, const void *from, size_t count);

// Writes `count` sums as f32, rounded once, to the nearest; kNotFinite, and what f32 cannot hold, as NaN. `to` is `sums`, or
// any address before it. Returns the largest finite magnitude in units, rounded.
double exact_sums_to_f32(void *to, const int64_t *sums, size_t count, int exponent);

// As loop_figures().
std::string exact_loop_figures();

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// Copying and adding host memory, with the widest vectors that this processor has (chosen at run time).
#pragma once

#include <cstddef>
#include <cstdint>

namespace odc {

// Copies `bytes`. Large copies go past the cache: the destination would only push out what the caller computes with.
void copy_bytes(void *to, const void *from, size_t bytes);

enum class Sum {
    Store,  // accumulator = gradient: the first addition of a minibatch
    Add     // accumulator += gradient
};

// Widens `count` gradients of `gradient_type` to the accumulator's type and stores or adds them. No alignment is
// needed beyond the elements' own; none is even needed for the gradient.
void add_elements(Sum sum, int32_t gradient_type, void *accumulator, const void *gradient, size_t count);

// The vector instructions in use, for people: "AVX3".
const char *vector_target();

}  // namespace odc

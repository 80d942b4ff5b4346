// SPDX-License-Identifier: Apache-2.0
// The contents of the benchmark's tensors: element i is i % 7 + 1, which is exact in every type, as are the sums. So a
// benchmark checks that the bytes it timed were the right ones.
#pragma once

#include <odc/odc.h>

#include <cstddef>
#include <cstdint>

namespace odc_tool {

constexpr uint64_t kLargestElement = 7;

// Elements first, first + 1, ... of the pattern.
void fill_pattern(odc_type type, void *to, uint64_t first, uint64_t count);
// Whether each element is `times` the pattern's: the sum after as many additions.
bool holds_pattern(odc_type type, const void *from, uint64_t first, uint64_t count, uint64_t times);

}  // namespace odc_tool

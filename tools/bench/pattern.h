// SPDX-License-Identifier: Apache-2.0
// What the benchmark's tensors hold: element i is i % 7 + 1, which every type has exactly and whose sums stay exact. So
// a benchmark can see whether the bytes that it timed were the right ones.
#pragma once

#include <odc/odc.h>

#include <cstddef>
#include <cstdint>

namespace odc_tool {

constexpr uint64_t kLargestElement = 7;

// Elements first, first + 1, ... of the pattern.
void fill_pattern(odc_type type, void *to, uint64_t first, uint64_t count);
// Whether each element is `times` that of the pattern: the sum after as many additions.
bool holds_pattern(odc_type type, const void *from, uint64_t first, uint64_t count, uint64_t times);

}  // namespace odc_tool

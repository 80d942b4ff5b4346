// SPDX-License-Identifier: Apache-2.0
// The machine's limit for `odc bench`: bare loops that move the same bytes between the same processes and do nothing else. They
// share no code with libodc, so that it is not compared with itself.
#pragma once

#include <odc/odc.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace odc_tool {

enum class Copy {
    Memcpy,
    NonTemporal,  // stores that bypass the caches, in the widest form that this processor has; otherwise memcpy
};

const char *copy_name(Copy copy);
void bare_copy(Copy copy, void *to, const void *from, size_t bytes);

// One lock per stripe of an accumulator, each in its own cache line.
struct alignas(64) BareLock {
    std::atomic<uint32_t> held;
};

size_t element_bytes(odc_type type);
odc_type accumulator_of(odc_type gradient_type);

// sums[i] += values[i], widened from `type` to accumulator_of(type), one stripe of `stripe_elements` after the other under its
// lock.
void bare_locked_add(odc_type type, void *sums, const void *values, uint64_t numel, BareLock *locks,
                     uint64_t stripe_elements);
// As exact sums (ODC_SUM_EXACT) do it: sums[i] += values[i] in units of 2^-kExactUnit, rounded to even and clamped to 51 bits.
constexpr int kExactUnit = 41;
void bare_locked_add_exactly(odc_type type, int64_t *sums, const void *values, uint64_t numel, BareLock *locks,
                             uint64_t stripe_elements);

}  // namespace odc_tool

// SPDX-License-Identifier: Apache-2.0
// Element types: their sizes, names and accumulators. Type 0 means that the shard lacks that half.
#pragma once

#include <odc/odc.h>

#include <cstddef>
#include <cstdint>

namespace odc {

constexpr size_t element_size(int32_t type) {
    switch (type) {
        case ODC_F32: return 4;
        case ODC_F64: return 8;
        case ODC_BF16:
        case ODC_F16: return 2;
        case ODC_BYTES: return 1;
        default: return 0;
    }
}

constexpr const char *element_name(int32_t type) {
    switch (type) {
        case 0: return "none";
        case ODC_F32: return "f32";
        case ODC_F64: return "f64";
        case ODC_BF16: return "bf16";
        case ODC_F16: return "f16";
        case ODC_BYTES: return "bytes";
        default: return "unknown";
    }
}

constexpr int32_t accumulator_type(int32_t gradient_type) {
    return gradient_type == ODC_F64 ? ODC_F64 : gradient_type == 0 ? 0 : ODC_F32;
}

// Bytes of an element's sum while gradients are added to it. `summation`: ODC_SUM_EXACT or 0.
constexpr size_t sum_size(int32_t gradient_type, int32_t summation) {
    return summation == ODC_SUM_EXACT ? sizeof(int64_t) : element_size(accumulator_type(gradient_type));
}

}  // namespace odc

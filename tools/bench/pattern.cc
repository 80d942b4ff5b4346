// SPDX-License-Identifier: Apache-2.0
// The pattern is written and compared in blocks of several periods, so that large tensors take little time.
#include "bench/pattern.h"

#include "bench/limit.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

namespace odc_tool {

namespace {

constexpr uint64_t kPeriod = kLargestElement;
constexpr uint64_t kBlock = 1024 * kPeriod;

// The bits of a small whole number above 0.
uint16_t half_bits(uint64_t value) {
    const auto exponent = static_cast<unsigned>(std::bit_width(value)) - 1;
    const uint64_t mantissa = (value << (10 - exponent)) & 0x3ff;
    return static_cast<uint16_t>(((exponent + 15) << 10) | mantissa);
}

template <class T>
void put(std::byte *to, T value) {
    std::memcpy(to, &value, sizeof(value));
}

void put_element(odc_type type, std::byte *to, uint64_t value) {
    const auto single = static_cast<float>(value);
    switch (type) {
        case ODC_F32: put(to, single); break;
        case ODC_F64: put(to, static_cast<double>(value)); break;
        case ODC_BF16: put(to, static_cast<uint16_t>(std::bit_cast<uint32_t>(single) >> 16)); break;
        case ODC_F16: put(to, half_bits(value)); break;
        case ODC_BYTES: put(to, static_cast<uint8_t>(value)); break;
    }
}

// Whole periods from element `first` on, `times` the pattern.
std::vector<std::byte> make_block(odc_type type, uint64_t first, uint64_t times) {
    const size_t bytes = element_bytes(type);
    std::vector<std::byte> block(kBlock * bytes);
    for (uint64_t i = 0; i < kBlock; ++i) {
        put_element(type, block.data() + i * bytes, ((first + i) % kPeriod + 1) * times);
    }
    return block;
}

// Calls visit(offset, bytes) for each piece of the tensor that a block covers, until one is false.
template <class Visit>
bool for_each_block(odc_type type, uint64_t count, const Visit &visit) {
    const size_t bytes = element_bytes(type);
    for (uint64_t i = 0; i < count; i += kBlock) {
        if (!visit(i * bytes, std::min(kBlock, count - i) * bytes)) {
            return false;
        }
    }
    return true;
}

}  // namespace

void fill_pattern(odc_type type, void *to, uint64_t first, uint64_t count) {
    const auto block = make_block(type, first, 1);
    for_each_block(type, count, [&](size_t offset, size_t bytes) {
        std::memcpy(static_cast<std::byte *>(to) + offset, block.data(), bytes);
        return true;
    });
}

bool holds_pattern(odc_type type, const void *from, uint64_t first, uint64_t count, uint64_t times) {
    const auto block = make_block(type, first, times);
    return for_each_block(type, count, [&](size_t offset, size_t bytes) {
        return std::memcmp(static_cast<const std::byte *>(from) + offset, block.data(), bytes) == 0;
    });
}

}  // namespace odc_tool

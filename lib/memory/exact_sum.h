// SPDX-License-Identifier: Apache-2.0
// The format of exact sums (ODC_SUM_EXACT): 64-bit integers in units of 2^(exponent - 51). Integer addition is associative, so
// the bits depend on the addends and the exponent only. An addend is rounded to a unit, so it is below 2^51 units, and 4,096
// of them fit. The exponent is the largest of those that a shard's owners publish, each for its own slice: it does not depend
// on how the shard is divided.
#pragma once

#include <algorithm>
#include <cstdint>

namespace odc {

constexpr int kExactBits = 51;
constexpr uint32_t kMostExactAddends = 4096;
// The sum of an element that was handed a NaN or an infinity.
constexpr int64_t kNotFinite = INT64_MIN;
constexpr double kLargestAddend = 0x1p51 - 1;  // in units
// Adding this to a number below 2^51 rounds it to an integer (to nearest, ties to even), which is then in the low bits.
constexpr double kExactRounder = 0x1.8p52;

// With the least exponent a unit is the least subnormal f32.
constexpr int kLeastExponent = -98;
constexpr int kMostExponent = 127;
constexpr bool is_exponent(int exponent) { return exponent >= kLeastExponent && exponent <= kMostExponent; }

constexpr int kHeadroom = 6;  // bits between a minibatch's largest sum and the next one's largest addend
// The exponent falls by one bit a minibatch, as the next one may be like the one before, but at once to at most this much above
// what the largest sum asks for: with fewer bits left, sums would be coarser than in f32.
constexpr int kMostExcess = 20;

// What an owner publishes: the exponent that its sums of the minibatch before ask for. An owner without sums votes to keep the
// exponent, which counts only if all owners do. The largest vote is the shard's exponent.
class ExponentVote {
public:
    static constexpr ExponentVote of(int exponent) { return ExponentVote(clamped(exponent)); }
    static constexpr ExponentVote keeping(int exponent) { return ExponentVote(clamped(exponent) - kKept); }
    static constexpr ExponentVote from_word(int16_t word) { return ExponentVote(word); }

    constexpr int16_t word() const { return static_cast<int16_t>(word_); }
    constexpr bool keeps() const { return word_ < kLeastExponent; }
    constexpr int exponent() const { return keeps() ? word_ + kKept : word_; }
    constexpr bool valid() const { return is_exponent(exponent()); }
    friend constexpr ExponentVote largest_of(ExponentVote one, ExponentVote other) {
        return ExponentVote(std::max(one.word_, other.word_));
    }

private:
    static constexpr int kKept = 1000;
    static constexpr int clamped(int exponent) { return std::clamp(exponent, kLeastExponent, kMostExponent); }
    explicit constexpr ExponentVote(int word) : word_(word) {}
    int word_;
};

}  // namespace odc

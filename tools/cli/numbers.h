// SPDX-License-Identifier: Apache-2.0
// The numbers of the command line. Text that is not entirely a number in the range throws Exit{2, "--ranks: \"abc\" is not a whole
// number from 1 to 4096"}; nothing wraps or is clamped.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace odc_tool {

struct WholeRange {
    uint64_t low;
    uint64_t high;
};
struct RealRange {
    double low;
    double high;
};

constexpr WholeRange kPositive = {1, std::numeric_limits<uint64_t>::max()};
constexpr WholeRange kTokens = {1, std::numeric_limits<int64_t>::max()};  // of a microbatch

uint64_t read_whole(const std::string &option, const std::string &text, WholeRange range);
// With or without a unit: k, kB, m, MB, ... are powers of 1000, Ki, KiB, ... of 1024; upper or lower case.
uint64_t read_bytes(const std::string &option, const std::string &text, WholeRange range);
double read_real(const std::string &option, const std::string &text, RealRange range);
// Bits a second, with a unit: k, M, G or T, upper or lower case.
double read_bandwidth(const std::string &option, const std::string &text);

}  // namespace odc_tool

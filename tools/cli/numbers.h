// SPDX-License-Identifier: Apache-2.0
// Numeric options of all verbs. Text that is not entirely a number in the range throws Exit{2, "--ranks: \"abc\" is not a whole
// number from 1 to 4096"}; nothing wraps or is clamped.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
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

// An option whose text is parsed by `take`, given its long name and the text.
CLI::Option *add_text(CLI::App *verb, const std::string &names, const std::string &help,
                      const std::function<void(const std::string &, const std::string &)> &take);

// Shows `value` as the default, unless it is 0.
template <class Whole>
CLI::Option *add_whole(CLI::App *verb, const std::string &names, Whole &value, WholeRange range,
                       const std::string &help) {
    CLI::Option *option =
        add_text(verb, names, help, [&value, range](const std::string &name, const std::string &text) {
            value = static_cast<Whole>(read_whole(name, text, range));
        });
    option->type_name(
        range.high < kTokens.high ? "N in " + std::to_string(range.low) + ".." + std::to_string(range.high) : "N");
    return value != 0 ? option->default_str(std::to_string(value)) : option;
}
CLI::Option *add_bytes(CLI::App *verb, const std::string &names, uint64_t &value, WholeRange range,
                       const std::string &help);
CLI::Option *add_real(CLI::App *verb, const std::string &names, double &value, RealRange range,
                      const std::string &help);

}  // namespace odc_tool

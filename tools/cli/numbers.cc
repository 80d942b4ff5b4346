// SPDX-License-Identifier: Apache-2.0
// Parses the numbers of the command line.
#include "cli/numbers.h"

#include "cli/exit.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

namespace odc_tool {

namespace {

// The number at the beginning of `text`; `rest` is what follows it.
template <class Number>
std::optional<Number> parse(std::string_view text, std::string_view &rest) {
    Number number{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    rest = text.substr(static_cast<size_t>(end - text.data()));
    return error == std::errc() ? std::optional(number) : std::nullopt;
}

// The factor of "", "b", "k", "kb", "ki", "kib", "m" and so on.
std::optional<uint64_t> unit_bytes(std::string_view unit) {
    constexpr std::string_view kPrefixes = "kmgtpe";
    std::string lower;
    for (const char c : unit) {
        lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    const size_t power = lower.empty() ? std::string_view::npos : kPrefixes.find(lower[0]);
    const std::string kind = power == std::string_view::npos ? lower : lower.substr(1);
    const bool binary = kind == "i" || kind == "ib";
    if ((kind != "" && kind != "b" && !binary) || (binary && power == std::string_view::npos)) {
        return std::nullopt;
    }
    uint64_t bytes = 1;
    for (size_t i = 0; power != std::string_view::npos && i <= power; ++i) {
        bytes *= binary ? 1024 : 1000;
    }
    return bytes;
}

template <class Range>
[[noreturn]] void refuse(const std::string &option, const std::string &text, const char *kind, Range range) {
    throw Exit{2, fmt::format("{}: \"{}\" is not {} from {} to {}", option, text, kind, range.low, range.high)};
}

}  // namespace

uint64_t read_whole(const std::string &option, const std::string &text, WholeRange range) {
    std::string_view rest;
    const auto number = parse<uint64_t>(text, rest);
    if (!number || !rest.empty() || *number < range.low || *number > range.high) {
        refuse(option, text, "a whole number", range);
    }
    return *number;
}

uint64_t read_bytes(const std::string &option, const std::string &text, WholeRange range) {
    std::string_view rest;
    const auto number = parse<uint64_t>(text, rest);
    const auto unit = unit_bytes(rest);
    uint64_t bytes = 0;
    if (!number || !unit || __builtin_mul_overflow(*number, *unit, &bytes) || bytes < range.low || bytes > range.high) {
        refuse(option, text, "a whole number of bytes, KiB, MiB, GiB, KB, MB or GB", range);
    }
    return bytes;
}

double read_real(const std::string &option, const std::string &text, RealRange range) {
    std::string_view rest;
    const auto number = parse<double>(text, rest);
    if (!number || !rest.empty() || !std::isfinite(*number) || *number < range.low || *number > range.high) {
        refuse(option, text, "a number", range);
    }
    return *number;
}

double read_bandwidth(const std::string &option, const std::string &text) {
    constexpr std::string_view kUnits = "kmgt";
    constexpr RealRange kRange{1e6, 1e14};
    std::string_view rest;
    double bits = parse<double>(text, rest).value_or(0);
    const size_t unit = rest.size() == 1
                            ? kUnits.find(static_cast<char>(std::tolower(static_cast<unsigned char>(rest[0]))))
                            : std::string_view::npos;
    bits *= unit == std::string_view::npos ? 0 : std::pow(1000.0, double(unit + 1));
    if (!(bits >= kRange.low && bits <= kRange.high)) {
        throw Exit{
            2, fmt::format("{}: \"{}\" is not a bandwidth from 1M to 100T, such as 25G for 25 Gbit/s", option, text)};
    }
    return bits;
}

}  // namespace odc_tool

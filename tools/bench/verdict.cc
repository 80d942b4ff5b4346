// SPDX-License-Identifier: Apache-2.0
#include "bench/verdict.h"

#include "cli/machine_load.h"

#include <fmt/format.h>

namespace odc_tool {

namespace {

// `better` and `worse` are the ends of the interval.
template <class Reaches>
std::string bar_text(const std::string &bar, double better, double worse, const Reaches &reaches) {
    const char *const text = reaches(worse) ? "met" : reaches(better) ? "within the interval" : "missed";
    return fmt::format("; bar {}: {}", bar, text);
}

Verdict verdict(const BenchOptions &options, const Disturbance &disturbance, const std::string &verb,
                const std::string &measured, const std::string &bar) {
    std::optional<std::string> why = why_not_resolved(disturbance.others);
    if (!why && options.pairs < kLeastPairsOfInterval) {
        why = fmt::format("an interval needs {} pairs: raise --pairs", kLeastPairsOfInterval);
    }
    return {why ? not_resolved(*why) : fmt::format("{} {}{}", verb, measured, bar), why};
}

}  // namespace

std::optional<double> ratio_bar(const BenchOptions &options, int ranks) {
    constexpr uint64_t kMiB = uint64_t{1} << 20;
    const bool large = options.bytes == (options.on_gpus() ? 256 : 64) * kMiB;
    if (options.on_gpus()) {
        return large && options.one_active() ? std::optional(0.95) : std::nullopt;
    }
    const bool known_type = options.type == "f32" || (options.type == "bf16" && options.operation == "scatter-add");
    const bool small = options.bytes == kMiB / 16;
    if (!known_type || (ranks != 2 && ranks != 4) || !(large || small)) {
        return std::nullopt;
    }
    return large ? 0.95 : 0.7;
}

std::optional<double> sync_bar_usec(const BenchOptions &options, int ranks) {
    return ranks == 2 && !options.on_gpus() ? std::optional(20.0) : std::nullopt;
}

Verdict ratio_verdict(const BenchOptions &options, const MedianInterval &ratio, const std::string &limit,
                      std::optional<double> bar, const Disturbance &disturbance) {
    const std::string measured =
        fmt::format("{:.3f} ({:.3f} to {:.3f}) of {}", ratio.median, ratio.low, ratio.high, limit);
    const auto reaches = [&](double value) { return value >= *bar; };
    return verdict(options, disturbance, "reached", measured,
                   bar ? bar_text(fmt::format("{}", *bar), ratio.high, ratio.low, reaches) : "");
}

std::optional<double> claim_bar_per_second(int ranks) { return ranks == 2 ? std::optional(2e6) : std::nullopt; }

Verdict claim_verdict(const BenchOptions &options, const MedianInterval &per_second, std::optional<double> bar,
                      const Disturbance &disturbance) {
    const std::string measured = fmt::format("{:.2f} million claims/s ({:.2f} to {:.2f})", 1e-6 * per_second.median,
                                             1e-6 * per_second.low, 1e-6 * per_second.high);
    const auto reaches = [&](double value) { return value >= *bar; };
    return verdict(
        options, disturbance, "made", measured,
        bar ? bar_text(fmt::format("{:g} million/s", 1e-6 * *bar), per_second.high, per_second.low, reaches) : "");
}

Verdict sync_verdict(const BenchOptions &options, const MedianInterval &usec, std::optional<double> bar,
                     const Disturbance &disturbance) {
    const std::string measured = fmt::format("{:.2f} us ({:.2f} to {:.2f})", usec.median, usec.low, usec.high);
    const auto reaches = [&](double value) { return value <= *bar; };
    return verdict(options, disturbance, "took", measured,
                   bar ? bar_text(fmt::format("{} us", *bar), usec.low, usec.high, reaches) : "");
}

}  // namespace odc_tool

// SPDX-License-Identifier: Apache-2.0
// Parses --slow, and draws the noise: the same on all ranks and in all arms, whatever runs before.
#include "replay/device_speeds.h"

#include "cli/exit.h"
#include "cli/numbers.h"

#include <fmt/format.h>

#include <string_view>

namespace odc_tool {
namespace {

std::vector<std::string> split(const std::string &text, char by) {
    std::vector<std::string> parts(1);
    for (const char c : text) {
        c == by ? static_cast<void>(parts.emplace_back()) : parts.back().push_back(c);
    }
    return parts;
}

SlowRank parse_one(const std::string &option, const std::string &text) {
    const std::vector<std::string> parts = split(text, ':');
    const std::vector<std::string> span = split(parts.back(), '-');
    if (parts.size() < 2 || parts.size() > 3 || (parts.size() == 3 && span.size() != 2)) {
        throw Exit{2,
                   fmt::format("{}: \"{}\" is not RANK:FACTOR or RANK:FACTOR:FIRST-LAST; give 0:2 for rank 0 at half "
                               "speed, 0:2:3-6 for minibatches 3 to 6",
                               option, text)};
    }
    const auto part = [&](const char *what) { return fmt::format("{} {}, {}", option, text, what); };
    SlowRank slow{read_whole(part("rank"), parts[0], {0, 1023}), read_real(part("factor"), parts[1], {0.01, 100})};
    if (parts.size() == 3) {
        slow.first = read_whole(part("first minibatch"), span[0], {1, 100'000});
        slow.last = read_whole(part("last minibatch"), span[1], {slow.first, 100'000});
    }
    return slow;
}

// splitmix64
uint64_t mixed(uint64_t value) {
    value += 0x9e3779b97f4a7c15;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    return value ^ (value >> 31);
}

}  // namespace

std::vector<SlowRank> parse_slow(const std::string &option, const std::string &text) {
    std::vector<SlowRank> slow;
    for (const std::string &one : split(text, ',')) {
        slow.push_back(parse_one(option, one));
    }
    return slow;
}

void check_slow(const std::vector<SlowRank> &slow, size_t ranks, size_t minibatches) {
    for (const SlowRank &one : slow) {
        if (one.rank >= ranks) {
            throw Exit{2, fmt::format("--slow names rank {}; the run has ranks 0 to {}", one.rank, ranks - 1)};
        }
        if (one.for_a_while() && one.last > minibatches) {
            throw Exit{
                2, fmt::format("--slow names minibatch {}; the run has minibatches 1 to {}", one.last, minibatches)};
        }
    }
}

std::vector<double> DeviceSpeeds::at(size_t minibatch) const {
    std::vector<double> speeds(ranks_);
    for (size_t rank = 0; rank < ranks_; ++rank) {
        const uint64_t draw = mixed(mixed(mixed(seed_) + minibatch) + rank);
        speeds[rank] = 1 + noise_ * (2 * double(draw >> 11) * 0x1p-53 - 1);
    }
    for (const SlowRank &slow : slow_) {
        if (slow.first <= minibatch + 1 && minibatch + 1 <= slow.last) {
            speeds[slow.rank] /= slow.factor;
        }
    }
    return speeds;
}

}  // namespace odc_tool

// SPDX-License-Identifier: Apache-2.0
#include "bench/rounds.h"

#include "cli/machine_load.h"
#include "cli/progress.h"
#include "rank/clock.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

namespace odc_tool {

namespace {

using Share = std::optional<double>;

constexpr int64_t kWindowNs = 200'000'000;  // /proc/stat counts in hundredths of a second

bool is_busy(const Share &share) { return share && *share > kBusyMachine; }

// Consecutive rounds. Rank 0's clock and its reading of /proc/stat decide for all ranks.
class Window {
public:
    explicit Window(Group &group) : group_(group) {}

    bool is_long() const { return of_rank_0(now_ns() - begin_ns_ >= kWindowNs ? 1 : 0) > 0; }

    Share share_of_others() const {
        const double own_seconds = group_.sum(own_cpu_seconds() - begin_cpu_seconds_);
        const double share = of_rank_0(load_.share_of_others(own_seconds).value_or(-1));
        return share < 0 ? Share() : Share(share);
    }

private:
    double of_rank_0(double mine) const { return group_.sum(group_.rank() == 0 ? mine : 0); }

    Group &group_;
    MachineLoad load_;
    double begin_cpu_seconds_ = own_cpu_seconds();
    int64_t begin_ns_ = now_ns();
};

Rounds keep_least_disturbed(const std::vector<Share> &shares, size_t count) {
    Rounds rounds{std::vector<size_t>(shares.size()), {shares.size() - count, {}}};
    std::iota(rounds.kept.begin(), rounds.kept.end(), size_t{0});
    std::stable_sort(rounds.kept.begin(), rounds.kept.end(),
                     [&](size_t one, size_t other) { return shares[one].value_or(0) < shares[other].value_or(0); });
    rounds.kept.resize(count);
    double sum = 0;
    size_t known = 0;
    for (const size_t round : rounds.kept) {
        sum += shares[round].value_or(0);
        known += shares[round] ? 1 : 0;
    }
    if (known > 0) {
        rounds.disturbance.others = sum / double(known);
    }
    return rounds;
}

}  // namespace

MedianInterval Rounds::median(const std::vector<double> &values) const {
    std::vector<double> kept_values;
    for (const size_t round : kept) {
        kept_values.push_back(values[round]);
    }
    return median_interval(std::move(kept_values));
}

Rounds run_rounds(Group &group, int pairs, const std::function<void()> &round) {
    const auto wanted = static_cast<size_t>(pairs);
    const size_t most = wanted + (wanted + 1) / 2;
    std::optional<Progress> progress;
    if (group.rank() == 0) {
        progress.emplace(1);
    }
    std::vector<Share> shares;  // by round, its window's
    std::string neighbours;
    for (size_t quiet = 0; quiet < wanted && shares.size() < most;) {
        const size_t begin = shares.size();
        const size_t last = std::min(begin + wanted - quiet, most);
        if (progress) {
            progress->show(double(begin) / double(last), fmt::format("pair {} of {}{}", begin + 1, last, neighbours));
        }
        const Window window(group);
        size_t end = begin;
        do {
            round();
            ++end;
        } while (end < last && !window.is_long());
        const Share share = window.share_of_others();
        shares.resize(end, share);
        quiet += is_busy(share) ? 0 : end - begin;
        neighbours = is_busy(share) ? fmt::format(", others use {:.0f} %", *share * 100) : "";
    }
    return keep_least_disturbed(shares, wanted);
}

}  // namespace odc_tool

// SPDX-License-Identifier: Apache-2.0
// The bare loops as contestants, and the race between two of them.
#include "bench/race.h"

#include "bench/pattern.h"
#include "cli/progress.h"
#include "rank/context.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>
#include <optional>
#include <random>
#include <utility>

namespace odc_tool {

namespace {

constexpr double kChoiceSeconds = 0.01;  // of a timing for the choice of the limit
constexpr int kRaceTries = 5;            // to find the number of repeats
constexpr int kRounds = 15;              // to choose the limit

double time_operations(Group &group, const Contestant &contestant, uint64_t repeats) {
    contestant.prepare();
    group.barrier();
    contestant.operate();  // loads its bytes into the caches, and allocates pages and shards
    contestant.synchronize();
    const double seconds = group.time([&] {
        for (uint64_t i = 0; i < repeats; ++i) {
            contestant.operate();
        }
        contestant.synchronize();
    });
    contestant.finish();
    return seconds / static_cast<double>(repeats);
}

double median_time(Group &group, const Contestant &contestant, uint64_t repeats) {
    std::vector<double> seconds;
    for (int i = 0; i < kRaceTries; ++i) {
        seconds.push_back(time_operations(group, contestant, repeats));
    }
    return median_interval(std::move(seconds)).median;
}

// All ranks shuffle alike, from one seed.
template <class Order, class Random>
void shuffle(Order &order, Random &random) {
    for (size_t i = order.size() - 1; i > 0; --i) {
        std::swap(order[i], order[random() % (i + 1)]);
    }
}

// Sets `variant` to the one of `candidates` with which `bare` has the least median. They take turns in random order, so that a
// disturbance does not decide. All ranks see the same times and agree.
template <class Variant>
void choose_fastest(Group &group, const Contestant &bare, Variant &variant, const std::vector<Variant> &candidates) {
    std::optional<Progress> progress;
    if (group.rank() == 0) {
        progress.emplace(kRounds);
    }
    const auto show = [&](int round) {
        if (progress) {
            progress->show(round, "choosing the bare loop");
        }
    };
    show(0);
    std::vector<size_t> order;
    std::vector<uint64_t> repeats;
    for (const Variant &candidate : candidates) {
        variant = candidate;
        order.push_back(order.size());
        repeats.push_back(choose_repeats(group, bare, kChoiceSeconds, 1, 1000));
    }
    std::mt19937_64 random(group.seed());
    std::vector<std::vector<double>> seconds(candidates.size());
    for (int round = 0; round < kRounds; ++round) {
        show(round);
        shuffle(order, random);
        for (const size_t turn : order) {
            variant = candidates[turn];
            seconds[turn].push_back(time_operations(group, bare, repeats[turn]));
        }
    }
    std::vector<double> medians;
    for (const std::vector<double> &times : seconds) {
        medians.push_back(median_interval(times).median);
    }
    variant = candidates[static_cast<size_t>(std::min_element(medians.begin(), medians.end()) - medians.begin())];
}

}  // namespace

RaceResult race(Group &group, const Contestant &odc, const Contestant &bare, const std::vector<Contestant> &others,
                int pairs, uint64_t repeats) {
    // The bare loop runs twice a round: compared with libodc, and with itself.
    std::vector<const Contestant *> contestants = {&odc, &bare, &bare};
    for (const Contestant &other : others) {
        contestants.push_back(&other);
    }
    std::vector<std::vector<double>> seconds(contestants.size());
    std::vector<std::vector<double>> ratios(contestants.size());  // speed of libodc / speed of this contestant
    std::vector<double> self_ratios;
    std::mt19937_64 random(group.seed());
    std::vector<size_t> order(contestants.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const Rounds rounds = run_rounds(group, pairs, [&] {
        shuffle(order, random);
        for (const size_t turn : order) {
            seconds[turn].push_back(time_operations(group, *contestants[turn], repeats));
        }
        for (size_t turn = 1; turn < contestants.size(); ++turn) {
            ratios[turn].push_back(seconds[turn].back() / seconds[0].back());
        }
        self_ratios.push_back(seconds[1].back() / seconds[2].back());
    });
    RaceResult result{repeats,
                      rounds.median(seconds[0]),
                      rounds.median(seconds[1]),
                      rounds.median(ratios[1]),
                      rounds.median(self_ratios),
                      {},
                      rounds.disturbance};
    for (size_t turn = 3; turn < contestants.size(); ++turn) {
        result.others.push_back({rounds.median(seconds[turn]), rounds.median(ratios[turn])});
    }
    return result;
}

SyncResult race_sync(Group &group, const Contestant &odc, int pairs) {
    std::vector<double> usec;
    std::vector<double> limit_usec;
    const Rounds rounds = run_rounds(group, pairs, [&] {
        odc.prepare();
        usec.push_back(1e6 * group.time_from_one_moment(odc.operate));
        odc.finish();
        limit_usec.push_back(1e6 * group.time_from_one_moment([&] { group.spin_barrier(); }));
    });
    return {rounds.median(usec), rounds.median(limit_usec), rounds.disturbance};
}

uint64_t choose_repeats(Group &group, const Contestant &bare, double timing_seconds, uint64_t least, uint64_t most) {
    uint64_t repeats = 1;
    for (;;) {
        const double seconds = median_time(group, bare, repeats);
        const double wanted = std::min(std::ceil(timing_seconds / seconds), 1e9);
        // Short timings consist largely of the barrier.
        if (wanted <= static_cast<double>(16 * repeats) || repeats >= most) {
            return std::clamp(static_cast<uint64_t>(wanted), std::min(least, most), most);
        }
        repeats = std::min(16 * repeats, most);
    }
}

// ---- BareGather ----

BareGather::BareGather(Group &group, const Tensor &tensor, const Gather &gather)
    : group_(group), tensor_(tensor), gather_(gather) {
    const int rank = group_.rank();
    fill_pattern(tensor_.type(), group_.memory() + tensor_.first(rank) * element_bytes(tensor_.type()),
                 tensor_.first(rank), tensor_.count(rank));
    group_.use_large_pages();
}

Contestant BareGather::contestant() {
    return {[this] { std::memset(tensor_.full(), 0, tensor_.bytes()); },
            [this] {
                const int size = group_.size();
                const size_t bytes = element_bytes(tensor_.type());
                for (int i = 0; i < size; ++i) {
                    const int owner = (group_.rank() + i) % size;
                    bare_copy(copy_, tensor_.full_at(owner), group_.memory() + tensor_.first(owner) * bytes,
                              tensor_.bytes_of(owner));
                }
            },
            [this] { gather_.check_full(); }};
}

std::string BareGather::choose() {
    choose_fastest(group_, contestant(), copy_, {Copy::Memcpy, Copy::NonTemporal});
    return copy_name(copy_);
}

// ---- BareAddition ----

namespace {

constexpr uint64_t kSmallestStripe = 4096;

size_t sum_bytes(const Tensor &tensor, Sums sums) {
    return sums == Sums::Exact ? sizeof(int64_t) : element_bytes(accumulator_of(tensor.type()));
}

// A rank's sums and its locks behind them, in whole pages.
size_t sums_bytes(const Tensor &tensor, Sums sums) {
    return (tensor.chunk() * sum_bytes(tensor, sums) + 4095) / 4096 * 4096;
}

size_t locks_bytes(const Tensor &tensor, Sums sums) {
    return sums_bytes(tensor, sums) / kSmallestStripe * sizeof(BareLock);
}

}  // namespace

size_t BareAddition::shared_bytes(const Tensor &tensor, int ranks, Sums sums) {
    return static_cast<size_t>(ranks) * (sums_bytes(tensor, sums) + locks_bytes(tensor, sums));
}

BareAddition::BareAddition(Group &group, const Tensor &tensor, Sums sums)
    : group_(group), tensor_(tensor), kind_(sums), stripe_bytes_(kSmallestStripe) {
    std::memset(this->sums(group_.rank()), 0, sums_bytes(tensor_, kind_));
    group_.use_large_pages();
}

std::byte *BareAddition::sums(int rank) const {
    return group_.memory() + static_cast<size_t>(rank) * sums_bytes(tensor_, kind_);
}

BareLock *BareAddition::locks(int rank) const {
    return reinterpret_cast<BareLock *>(sums(group_.size()) + static_cast<size_t>(rank) * locks_bytes(tensor_, kind_));
}

void BareAddition::add(int owner) {
    const uint64_t stripe = stripe_bytes_ / sum_bytes(tensor_, kind_);
    if (kind_ == Sums::Exact) {
        bare_locked_add_exactly(tensor_.type(), reinterpret_cast<int64_t *>(sums(owner)), tensor_.full_at(owner),
                                tensor_.count(owner), locks(owner), stripe);
    } else {
        bare_locked_add(tensor_.type(), sums(owner), tensor_.full_at(owner), tensor_.count(owner), locks(owner),
                        stripe);
    }
}

void BareAddition::check() {
    const std::byte *mine = sums(group_.rank());
    std::vector<float> read;
    if (kind_ == Sums::Exact) {
        const auto *units = reinterpret_cast<const int64_t *>(mine);
        std::transform(units, units + tensor_.count(group_.rank()), std::back_inserter(read), [](int64_t sum) {
            return static_cast<float>(std::ldexp(static_cast<double>(sum), -kExactUnit));
        });
        mine = reinterpret_cast<const std::byte *>(read.data());
    }
    check_sums(tensor_, group_.rank(), group_.size(), mine, additions_);
}

Contestant BareAddition::contestant() {
    return {[this] {
                additions_ = 0;
                std::memset(sums(group_.rank()), 0, sums_bytes(tensor_, kind_));
            },
            [this] {
                ++additions_;
                for (int i = 0; i < group_.size(); ++i) {
                    add((group_.rank() + i) % group_.size());
                }
            },
            [this] { check(); }};
}

std::string BareAddition::choose() {
    choose_fastest<uint64_t>(group_, contestant(), stripe_bytes_, {kSmallestStripe, 16 << 10, 64 << 10, 256 << 10});
    return fmt::format("stripes of {} KiB", stripe_bytes_ >> 10);
}

}  // namespace odc_tool

// SPDX-License-Identifier: Apache-2.0
#include "planner/lookahead.h"

#include "planner/partition.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

namespace odc {

namespace {

// An exchange must save this share of an average sample's part of the window.
constexpr double kLeastGain = 0.5;
constexpr size_t kMostTogether = 64;  // beyond this the counting bound is no better than the average
constexpr double kNegligible = 1e-12;

Samples costliest_first(Samples samples, const std::vector<double> &costs) {
    std::stable_sort(samples.begin(), samples.end(),
                     [&](uint32_t x, uint32_t y) { return costs[x] > costs[y] || (costs[x] == costs[y] && x < y); });
    return samples;
}

// Exchanges among neighbouring minibatches. One after another becomes the receiver: that with the costliest sample left. It takes
// the costliest samples of the others, the donors, for its own cheapest, until its cost, spread over the ranks, keeps each busy
// as long as its costliest sample takes.
class Exchange {
public:
    // Each minibatch costliest first.
    Exchange(Window &window, const std::vector<double> &costs, size_t ranks, MoveLimits limits)
        : costs_(costs), ranks_(ranks) {
        double total = 0;
        size_t samples = 0;
        for (Samples &one : window) {
            std::vector<double> sums = {0};
            for (const uint32_t sample : one) {
                sums.push_back(sums.back() + costs[sample]);
            }
            total += sums.back();
            samples += one.size();
            const double cost = sums.back();
            minibatches_.push_back({.samples = one,
                                    .sums = std::move(sums),
                                    .cost = cost,
                                    .time = std::max(even(cost), costs[one.front()]),
                                    .kept = one.size()});
        }
        const auto count = static_cast<double>(samples);
        moved_left_ = static_cast<uint64_t>(limits.moved * count);
        displacement_left_ = static_cast<uint64_t>(limits.displacement * count);
        least_gain_ = kLeastGain * even(total) / count;
    }

    void run() {
        for (std::optional<size_t> receiver = next_receiver(); receiver; receiver = next_receiver()) {
            minibatches_[*receiver].role = Role::Receiver;
            while (has_idle_ranks(minibatches_[*receiver]) && take(*receiver)) {
            }
        }
    }

private:
    enum class Role { Donor, Receiver };

    struct Minibatch {
        Samples &samples;          // costliest first but for the exchanged
        std::vector<double> sums;  // of the costs of so many samples, as they were
        double cost;
        double time;       // estimated
        size_t given = 0;  // costliest samples given away
        size_t kept;       // the samples from here on have been exchanged for costlier ones
        double cheapest_taken = INFINITY;
        Role role = Role::Donor;

        size_t left() const { return kept - given; }
    };

    // The samples that a donor gives in one exchange.
    struct Several {
        size_t donor = 0;
        size_t count = 0;
        double gain = 0;  // of each
    };

    double cost(const Minibatch &one, size_t place) const { return costs_[one.samples[place]]; }
    double even(double cost) const { return cost / static_cast<double>(ranks_); }  // on every rank
    bool has_idle_ranks(const Minibatch &one) const {
        return one.left() > 1 && cost(one, one.given) > even(one.cost) * (1 + kNegligible);
    }

    // None if no minibatch could take from another.
    std::optional<size_t> next_receiver() const {
        std::optional<size_t> receiver;
        size_t donors = 0;
        for (size_t i = 0; i < minibatches_.size(); ++i) {
            const Minibatch &one = minibatches_[i];
            if (one.role == Role::Donor && has_idle_ranks(one)) {
                ++donors;
                if (!receiver || cost(one, one.given) > cost(minibatches_[*receiver], minibatches_[*receiver].given)) {
                    receiver = i;
                }
            }
        }
        return donors < 2 ? std::nullopt : receiver;
    }

    // Makes the best exchange for this receiver; false if none is worth it.
    bool take(size_t at) {
        const std::optional<Several> found = best(at);
        if (!found) {
            return false;
        }
        Minibatch &receiver = minibatches_[at];
        Minibatch &donor = minibatches_[found->donor];
        const double more = difference(receiver, donor, found->count);
        receiver.time = time_with(receiver, donor, found->count);
        receiver.cheapest_taken = std::min(receiver.cheapest_taken, cost(donor, donor.given + found->count - 1));
        donor.time = time_without(receiver, donor, found->count);
        for (size_t i = 0; i < found->count; ++i) {
            std::swap(donor.samples[donor.given++], receiver.samples[--receiver.kept]);
        }
        donor.cost -= more;
        receiver.cost += more;
        moved_left_ -= 2 * found->count;
        displacement_left_ -= 2 * found->count * distance(at, found->donor);
        return true;
    }

    // The exchange that gains most, if it gains enough: of one sample, else of several, as samples of one cost have to go together
    // before a minibatch's time falls.
    std::optional<Several> best(size_t at) const {
        for (const size_t together : {size_t{1}, SIZE_MAX}) {
            Several most;
            for (size_t i = 0; i < minibatches_.size(); ++i) {
                if (minibatches_[i].role == Role::Donor && has_idle_ranks(minibatches_[i])) {
                    const Several some = best_of(at, i, together);
                    most = some.gain > most.gain ? some : most;
                }
            }
            if (most.count > 0 && most.gain >= least_gain_) {
                return most;
            }
        }
        return std::nullopt;
    }

    // The best exchange with one donor: of at most `together` samples, each longer than all of the donor's spread over the ranks.
    Several best_of(size_t at, size_t from, size_t together) const {
        const Minibatch &receiver = minibatches_[at];
        const Minibatch &donor = minibatches_[from];
        const auto begin = donor.samples.begin() + static_cast<std::ptrdiff_t>(donor.given);
        const auto end = donor.samples.begin() + static_cast<std::ptrdiff_t>(donor.kept);
        const auto long_end =
            std::partition_point(begin, end, [&](uint32_t sample) { return costs_[sample] > even(donor.cost); });
        const size_t limit =
            std::min({together, static_cast<size_t>(long_end - begin), donor.left() - 1, receiver.left() - 1,
                      moved_left_ / 2, displacement_left_ / 2 / distance(at, from)});
        Several most;
        // The count grows by more than one once it is large.
        for (size_t count = 1; count <= limit && is_costlier(donor, receiver, count);
             count = count < limit ? std::min(count + 1 + count / 16, limit) : limit + 1) {
            const double gain = gain_of(receiver, donor, count) / static_cast<double>(count);
            if (gain > most.gain) {
                most = {from, count, gain};
            }
        }
        return most;
    }

    // Whether each of the `count` samples that the receiver would get costs more than each that it would give.
    bool is_costlier(const Minibatch &donor, const Minibatch &receiver, size_t count) const {
        return cost(donor, donor.given + count - 1) > cost(receiver, receiver.kept - count) * (1 + kNegligible);
    }

    double gain_of(const Minibatch &receiver, const Minibatch &donor, size_t count) const {
        return receiver.time + donor.time - time_with(receiver, donor, count) - time_without(receiver, donor, count);
    }

    double time_without(const Minibatch &receiver, const Minibatch &donor, size_t count) const {
        return std::max(even(donor.cost - difference(receiver, donor, count)), cost(donor, donor.given + count));
    }

    // If there are more long samples than ranks, some rank has two of them, and so on.
    double time_with(const Minibatch &receiver, const Minibatch &donor, size_t count) const {
        const size_t taken = receiver.samples.size() - receiver.kept + count;
        const double cheapest = std::min(receiver.cheapest_taken, cost(donor, donor.given + count - 1));
        const auto is_more_than = [&](size_t number) {
            return number < taken || (number - taken < receiver.kept - count &&
                                      cost(receiver, number - taken) >= cheapest * (1 - kNegligible));
        };
        size_t on_a_rank = 1;
        while (is_more_than(on_a_rank * ranks_)) {
            ++on_a_rank;
        }
        return std::max({even(receiver.cost + difference(receiver, donor, count)), cost(receiver, 0),
                         static_cast<double>(on_a_rank) * cheapest});
    }

    // The cost that goes to the receiver.
    static double difference(const Minibatch &receiver, const Minibatch &donor, size_t count) {
        return donor.sums[donor.given + count] - donor.sums[donor.given] -
               (receiver.sums[receiver.kept] - receiver.sums[receiver.kept - count]);
    }

    static uint64_t distance(size_t x, size_t y) { return std::max(x, y) - std::min(x, y); }

    const std::vector<double> &costs_;
    size_t ranks_;
    uint64_t moved_left_ = 0;
    uint64_t displacement_left_ = 0;
    double least_gain_ = 0;
    std::vector<Minibatch> minibatches_;
};

}  // namespace

double estimate(const Window &window, const std::vector<double> &costs, size_t ranks) {
    const Speeds equal(ranks, 1.0);
    return std::accumulate(window.begin(), window.end(), 0.0, [&](double sum, const Samples &samples) {
        std::vector<double> some;
        for (const uint32_t sample : samples) {
            some.push_back(costs[sample]);
        }
        return sum + lower_bound(some, equal);
    });
}

bool is_less(double time, double than) { return time < than * (1 - kNegligible); }

double least_time(const Window &window, const std::vector<double> &costs, size_t ranks) {
    std::vector<double> of_window;
    std::vector<size_t> counts;
    for (const Samples &samples : window) {
        counts.push_back(samples.size());
        for (const uint32_t sample : samples) {
            of_window.push_back(costs[sample]);
        }
    }
    std::sort(of_window.begin(), of_window.end(), std::greater<>());
    std::sort(counts.begin(), counts.end(), std::greater<>());
    // A lower bound of the sum of what each minibatch's sample at `place` (costliest first) costs. Take the minibatches in falling
    // order of that cost: only samples of those before the m-th, and `place` of each from it on, can cost more than its sample.
    // These are most if the largest minibatches come first.
    const auto sum_at = [&](size_t place) {
        double sum = 0;
        size_t before = 0;
        for (size_t m = 0; m < counts.size(); ++m) {
            const size_t costlier = before + place * (counts.size() - m);
            sum += costlier < of_window.size() ? of_window[costlier] : 0;
            before += counts[m];
        }
        return sum;
    };
    double bound = std::accumulate(of_window.begin(), of_window.end(), 0.0) / static_cast<double>(ranks);
    // Some rank has j + 1 of a minibatch's j * ranks + 1 costliest samples, which cost at least what the last j + 1 of them cost.
    for (size_t j = 0; j <= kMostTogether && j * ranks < counts.front(); ++j) {
        double sum = 0;
        for (size_t place = j * ranks - j; place <= j * ranks; ++place) {
            sum += sum_at(place);
        }
        bound = std::max(bound, sum);
    }
    return bound;
}

Window exchanged(const Window &window, const std::vector<double> &costs, size_t ranks, MoveLimits limits) {
    Window given;
    for (const Samples &one : window) {
        given.push_back(costliest_first(one, costs));
    }
    // least[m]: the least time of the first m minibatches; last_group[m]: the last group of the division that has it.
    std::vector<double> least = {0};
    std::vector<Window> last_group(1);
    for (auto end = given.begin() + 1; end <= given.end(); ++end) {
        least.push_back(INFINITY);
        last_group.emplace_back();
        for (auto begin = end; begin-- != given.begin();) {
            Window group(begin, end);
            Exchange(group, costs, ranks, limits).run();
            const double time = least[static_cast<size_t>(begin - given.begin())] + estimate(group, costs, ranks);
            if (is_less(time, least.back())) {
                least.back() = time;
                last_group.back() = std::move(group);
            }
        }
    }
    Window out(given.size());
    for (size_t end = given.size(); end > 0; end -= last_group[end].size()) {
        std::move(last_group[end].begin(), last_group[end].end(),
                  out.begin() + static_cast<std::ptrdiff_t>(end - last_group[end].size()));
    }
    return out;
}

Window sorted(const Window &window, const std::vector<double> &costs) {
    Samples all;
    for (const Samples &samples : window) {
        all.insert(all.end(), samples.begin(), samples.end());
    }
    all = costliest_first(std::move(all), costs);
    Window out;
    auto next = all.begin();
    for (const Samples &samples : window) {
        const auto end = next + static_cast<std::ptrdiff_t>(samples.size());
        out.emplace_back(next, end);
        next = end;
    }
    return out;
}

Moves moves_between(const Window &before, const Window &after, size_t samples) {
    std::vector<size_t> was(samples);
    for (size_t minibatch = 0; minibatch < before.size(); ++minibatch) {
        for (const uint32_t sample : before[minibatch]) {
            was[sample] = minibatch;
        }
    }
    Moves moves;
    for (size_t minibatch = 0; minibatch < after.size(); ++minibatch) {
        for (const uint32_t sample : after[minibatch]) {
            const size_t distance = std::max(was[sample], minibatch) - std::min(was[sample], minibatch);
            moves.moved += distance != 0 ? 1 : 0;
            moves.displacement += distance;
        }
    }
    return moves;
}

}  // namespace odc

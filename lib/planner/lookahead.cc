// SPDX-License-Identifier: Apache-2.0
#include "planner/lookahead.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

namespace odc {

namespace {

// An exchange must save this share of an average sample's part of the window.
constexpr double kLeastGain = 0.5;
// Samples of one cost may have to go together before a minibatch's time falls; so many are looked at.
constexpr size_t kTogether = 32;
constexpr double kNegligible = 1e-12;

Samples costliest_first(Samples samples, const std::vector<double> &costs) {
    std::stable_sort(samples.begin(), samples.end(),
                     [&](uint32_t x, uint32_t y) { return costs[x] > costs[y] || (costs[x] == costs[y] && x < y); });
    return samples;
}

// Exchanges among neighbouring minibatches. One after another becomes the receiver: that with the costliest sample left. It takes the
// costliest samples of the others, the donors, for its own cheapest, until its cost fills every rank as long as its costliest
// sample takes.
class Exchange {
public:
    Exchange(Window &window, const std::vector<double> &costs, size_t ranks, MoveLimits limits)
        : costs_(costs), ranks_(static_cast<double>(ranks)), limits_(limits) {
        double total = 0;
        size_t samples = 0;
        for (Samples &one : window) {
            one = costliest_first(std::move(one), costs);
            minibatches_.push_back({one, 0, 0, one.size(), Role::Donor});
            Minibatch &added = minibatches_.back();
            for (const uint32_t sample : one) {
                added.cost += costs[sample];
            }
            total += added.cost;
            samples += one.size();
        }
        least_gain_ = kLeastGain * total / ranks_ / static_cast<double>(samples);
    }

    void run() {
        for (std::optional<size_t> receiver = next_receiver(); receiver; receiver = next_receiver()) {
            minibatches_[*receiver].role = Role::Receiver;
            while (take_one(*receiver)) {
            }
        }
    }

private:
    enum class Role { Donor, Receiver };

    struct Minibatch {
        Samples &samples;  // costliest first but for the exchanged
        double cost;
        size_t given;  // costliest samples given away
        size_t kept;   // the samples from here on have been exchanged for costlier ones
        Role role;
    };

    double cost(const Minibatch &one, size_t place) const { return costs_[one.samples[place]]; }
    double even(double cost) const { return cost / ranks_; }  // on every rank
    bool has_idle_ranks(const Minibatch &one) const {
        return one.given + 1 < one.kept && cost(one, one.given) > even(one.cost) * (1 + kNegligible);
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

    // Whether another exchange may follow.
    bool take_one(size_t at) {
        Minibatch &receiver = minibatches_[at];
        const std::optional<size_t> found = best_donor(receiver);
        if (!found) {
            return false;
        }
        const uint64_t distance = *found > at ? *found - at : at - *found;
        if (limits_.moved < 2 || limits_.displacement < 2 * distance) {
            return false;
        }
        limits_.moved -= 2;
        limits_.displacement -= 2 * distance;
        Minibatch &donor = minibatches_[*found];
        const double more = cost(donor, donor.given) - cost(receiver, receiver.kept - 1);
        std::swap(donor.samples[donor.given], receiver.samples[receiver.kept - 1]);
        ++donor.given;
        --receiver.kept;
        donor.cost -= more;
        receiver.cost += more;
        return even(receiver.cost) < cost(receiver, receiver.given);
    }

    // The donor that gains most, if that is enough.
    std::optional<size_t> best_donor(const Minibatch &receiver) const {
        if (receiver.given + 1 >= receiver.kept) {
            return std::nullopt;
        }
        std::optional<size_t> best;
        double most = 0;
        for (const bool together : {false, true}) {
            for (size_t i = 0; i < minibatches_.size(); ++i) {
                const Minibatch &donor = minibatches_[i];
                if (donor.role != Role::Donor || !has_idle_ranks(donor) ||
                    cost(donor, donor.given) <= cost(receiver, receiver.kept - 1) * (1 + kNegligible)) {
                    continue;
                }
                const double gain = together ? gain_together(donor) : gain_of_one(receiver, donor);
                if (!best || gain > most) {
                    best = i;
                    most = gain;
                }
            }
            if (best && most >= least_gain_) {
                return best;
            }
            best.reset();
        }
        return std::nullopt;
    }

    double gain_of_one(const Minibatch &receiver, const Minibatch &donor) const {
        const double given = cost(donor, donor.given);
        const double more = given - cost(receiver, receiver.kept - 1);
        const double longest = cost(receiver, receiver.given);
        const double before = std::max(even(receiver.cost), longest) + std::max(even(donor.cost), given);
        const double after = std::max(even(receiver.cost + more), longest) +
                             std::max(even(donor.cost - more), cost(donor, donor.given + 1));
        return before - after;
    }

    // Of each of several.
    double gain_together(const Minibatch &donor) const {
        const double given = cost(donor, donor.given);
        const double floor = even(donor.cost);
        double most = 0;
        for (size_t count = 1; count < kTogether && donor.given + count < donor.kept; ++count) {
            const double left = cost(donor, donor.given + count);
            most = std::max(most, (given - std::max(left, floor)) / static_cast<double>(count));
            if (left <= floor) {
                break;
            }
        }
        return most;
    }

    const std::vector<double> &costs_;
    double ranks_;
    MoveLimits limits_;
    double least_gain_ = 0;
    std::vector<Minibatch> minibatches_;
};

// In groups of `ahead` minibatches, each with its part of the limits.
Window exchanged_in_groups(const Window &window, const std::vector<double> &costs, size_t ranks, MoveLimits limits,
                           size_t ahead) {
    const auto samples_of = [](const Window &some) {
        return std::accumulate(some.begin(), some.end(), size_t{0},
                               [](size_t sum, const Samples &one) { return sum + one.size(); });
    };
    const double all = static_cast<double>(samples_of(window));
    Window out;
    for (size_t begin = 0; begin < window.size(); begin += ahead) {
        const size_t end = std::min(begin + ahead, window.size());
        Window group(window.begin() + static_cast<std::ptrdiff_t>(begin),
                     window.begin() + static_cast<std::ptrdiff_t>(end));
        const double share = static_cast<double>(samples_of(group)) / all;
        Exchange(group, costs, ranks,
                 {static_cast<uint64_t>(static_cast<double>(limits.moved) * share),
                  static_cast<uint64_t>(static_cast<double>(limits.displacement) * share)})
            .run();
        out.insert(out.end(), group.begin(), group.end());
    }
    return out;
}

}  // namespace

double estimate(const Window &window, const std::vector<double> &costs, size_t ranks) {
    double sum = 0;
    for (const Samples &samples : window) {
        double total = 0;
        double longest = 0;
        for (const uint32_t sample : samples) {
            total += costs[sample];
            longest = std::max(longest, costs[sample]);
        }
        sum += std::max(total / static_cast<double>(ranks), longest);
    }
    return sum;
}

bool is_less(double time, double than) { return time < than * (1 - kNegligible); }

Window exchanged(const Window &window, const std::vector<double> &costs, size_t ranks, MoveLimits limits) {
    Window best = window;
    double least = estimate(window, costs, ranks);
    for (size_t ahead = 2; ahead <= window.size(); ++ahead) {
        Window tried = exchanged_in_groups(window, costs, ranks, limits, ahead);
        const double time = estimate(tried, costs, ranks);
        if (is_less(time, least)) {
            least = time;
            best = std::move(tried);
        }
    }
    return best;
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

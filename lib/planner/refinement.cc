// SPDX-License-Identifier: Apache-2.0
#include "planner/refinement.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <utility>

namespace odc {

namespace {

// See refine().
class Refinement {
public:
    Refinement(Parts &parts, const std::vector<double> &costs, const Speeds &speeds, CountLimits limits, uint64_t steps)
        : parts_(parts), costs_(costs), speeds_(speeds), limits_(limits), steps_(steps), sums_(parts.size()),
          choices_(parts.size()) {
        for (uint32_t part = 0; part < parts.size(); ++part) {
            rank(part);
        }
    }

    // Local search: descends to a local optimum, then perturbs it and descends again while there are steps; keeps the best.
    void run() {
        const double enough = lower_bound(costs_, speeds_) * (1 + kNegligible);
        descend();
        Parts best = parts_;
        double least = longest();
        changed_.clear();
        while (parts_.size() > 1 && steps_ > 0 && least > enough) {
            perturb();
            descend();
            if (longest() <= least) {  // an equal one, too, as it has other neighbours
                least = longest();
                for (const uint32_t part : changed_) {
                    best[part] = parts_[part];
                }
            } else {
                restore(best);
            }
            changed_.clear();
        }
    }

private:
    static constexpr uint32_t kNone = UINT32_MAX;

    // Up to two items of a part.
    struct Choice {
        double sum;
        uint32_t first;
        uint32_t second;
    };
    using Choices = std::array<std::vector<Choice>, 3>;  // by number of items, each in the order of the sums

    // `given` goes from the longer part to the shorter, `taken` back; both are then shorter than the longer was.
    struct Exchange {
        uint32_t longer;
        uint32_t shorter;
        Choice given;
        Choice taken;
        double most;  // of the two new times
        double least;
    };

    static constexpr size_t kPairsAmong = 32;     // items of a part; that gives 496 pairs
    static constexpr uint64_t kStepsToSort = 16;  // comparisons to make and sort a choice
    static constexpr double kNegligible = 1e-12;

    double longest() const { return ranking_.rbegin()->first; }
    double time(uint32_t part) const { return sums_[part] / speeds_[part]; }

    void descend() {
        while (parts_.size() > 1 && (shorten_longest() || lengthen_shortest())) {
        }
    }

    // Swaps an item of the longest part with one of another, one of that with one of a third, up to four times.
    void perturb() {
        uint32_t from = ranking_.rbegin()->second;
        for (auto swaps = 1 + random_() % 4; swaps > 0; --swaps) {
            const auto to = static_cast<uint32_t>((from + 1 + random_() % (parts_.size() - 1)) % parts_.size());
            if (!parts_[from].empty() && !parts_[to].empty()) {
                const Choice given = {0, parts_[from][random_() % parts_[from].size()], kNone};
                const Choice taken = {0, parts_[to][random_() % parts_[to].size()], kNone};
                apply(Exchange{from, to, given, taken, 0, 0});
            }
            from = to;
        }
    }

    void restore(const Parts &best) {
        for (const uint32_t part : changed_) {
            if (parts_[part] != best[part]) {
                ranking_.erase({time(part), part});
                forget_choices(part);
                parts_[part] = best[part];
                rank(part);
            }
        }
        spend(costs_.size());
    }

    // Takes the first exchange after which another part is the longest; if there is none, the best.
    bool shorten_longest() {
        const auto longest = std::prev(ranking_.end());
        const double enough = std::prev(longest)->first;
        std::optional<Exchange> best;
        for (auto other = ranking_.begin(); other != longest && steps_ > 0; ++other) {
            const std::optional<Exchange> found = best_exchange(longest->second, other->second);
            if (found && (!best || found->most < best->most)) {
                best = found;
                if (best->most <= enough) {
                    break;
                }
            }
        }
        return apply(best);
    }

    bool lengthen_shortest() {
        const auto shortest = ranking_.begin();
        const double enough = std::next(shortest)->first;
        std::optional<Exchange> best;
        for (auto other = std::prev(ranking_.end()); other != shortest && steps_ > 0; --other) {
            const std::optional<Exchange> found = best_exchange(other->second, shortest->second);
            if (found && (!best || found->least > best->least)) {
                best = found;
                if (best->least >= enough) {
                    break;
                }
            }
        }
        return apply(best);
    }

    // If cost `even` moves, both parts take equally long. Moving more or less costs time by the speed of the part that is then
    // the longer one.
    std::optional<Exchange> best_exchange(uint32_t longer, uint32_t shorter) {
        const double speeds = speeds_[longer] + speeds_[shorter];
        const double even = (sums_[longer] * speeds_[shorter] - sums_[shorter] * speeds_[longer]) / speeds;
        const double longer_pace = 1 / speeds_[longer];
        const double shorter_pace = 1 / speeds_[shorter];
        const double negligible =
            kNegligible * time(longer);  // above rounding errors, or exchanges could be undone for ever
        double nearest = even * longer_pace - negligible;
        double below = 0;
        const Choice *best_given = nullptr;
        const Choice *best_taken = nullptr;
        const auto consider = [&](const Choice &given, const Choice &taken, double wanted) {
            const double left = taken.sum - wanted;  // above the even sum of the longer part
            const double above = left > 0 ? left * longer_pace : -left * shorter_pace;
            if (above < nearest) {
                nearest = above;
                below = left > 0 ? left * shorter_pace : -left * longer_pace;
                best_given = &given;
                best_taken = &taken;
            }
        };
        const Choices &of_longer = choices(longer);
        const Choices &of_shorter = choices(shorter);
        for (size_t give = 0; give < 3; ++give) {
            for (size_t take = 0; take < 3; ++take) {
                if (!allowed(longer, give, take) || !allowed(shorter, take, give)) {
                    continue;
                }
                const std::vector<Choice> &taken = of_shorter[take];
                spend(of_longer[give].size() + taken.size());
                if (taken.empty()) {
                    continue;
                }
                const Choice *at = taken.data();
                const Choice *const last = at + taken.size() - 1;
                for (const Choice &given : of_longer[give]) {
                    const double wanted = given.sum - even;
                    while (at < last && at[1].sum <= wanted) {
                        ++at;
                    }
                    consider(given, *at, wanted);
                    if (at < last) {
                        consider(given, at[1], wanted);
                    }
                }
            }
        }
        if (best_given == nullptr) {
            return std::nullopt;
        }
        const double middle = (sums_[longer] + sums_[shorter]) / speeds;
        return Exchange{longer, shorter, *best_given, *best_taken, middle + nearest, middle - below};
    }

    bool allowed(uint32_t part, size_t less, size_t more) const {
        const size_t count = parts_[part].size();
        return count >= less && count - less + more >= limits_.low && count - less + more <= limits_.high;
    }

    const Choices &choices(uint32_t part) {
        Choices &out = choices_[part];
        if (!out[0].empty()) {
            return out;
        }
        const std::vector<uint32_t> &items = parts_[part];
        out[0].push_back({0, kNone, kNone});
        for (size_t i = 0; i < items.size(); ++i) {
            out[1].push_back({costs_[items[i]], items[i], kNone});
            for (size_t j = 0; j < i && i < kPairsAmong; ++j) {
                out[2].push_back({costs_[items[i]] + costs_[items[j]], items[i], items[j]});
            }
        }
        for (std::vector<Choice> &of_size : out) {
            sort_by_sum(of_size);
            spend(of_size.size() * kStepsToSort);
        }
        return out;
    }

    // The memory is kept: parts change often.
    void forget_choices(uint32_t part) {
        for (std::vector<Choice> &of_size : choices_[part]) {
            of_size.clear();
        }
    }

    // Stable. Most are few, for which insertion is faster than std::stable_sort with its buffer.
    static void sort_by_sum(std::vector<Choice> &choices) {
        constexpr size_t kFew = 64;
        if (choices.size() > kFew) {
            std::stable_sort(choices.begin(), choices.end(),
                             [](const Choice &x, const Choice &y) { return x.sum < y.sum; });
            return;
        }
        for (size_t i = 1; i < choices.size(); ++i) {
            const Choice one = choices[i];
            size_t at = i;
            for (; at > 0 && choices[at - 1].sum > one.sum; --at) {
                choices[at] = choices[at - 1];
            }
            choices[at] = one;
        }
    }

    bool apply(const std::optional<Exchange> &exchange) {
        if (!exchange) {
            return false;
        }
        const auto [longer, shorter, given, taken, most, least] = *exchange;
        for (const uint32_t part : {longer, shorter}) {
            ranking_.erase({time(part), part});
            forget_choices(part);
            changed_.push_back(part);
        }
        move(given, longer, shorter);
        move(taken, shorter, longer);
        rank(longer);
        rank(shorter);
        return true;
    }

    void move(const Choice &choice, uint32_t from, uint32_t to) {
        for (const uint32_t item : {choice.first, choice.second}) {
            if (item != kNone) {
                std::erase(parts_[from], item);
                parts_[to].push_back(item);
            }
        }
    }

    void rank(uint32_t part) {
        sums_[part] = 0;
        for (const uint32_t item : parts_[part]) {
            sums_[part] += costs_[item];
        }
        ranking_.emplace(time(part), part);
    }

    void spend(uint64_t steps) { steps_ -= std::min(steps_, steps); }

    Parts &parts_;
    const std::vector<double> &costs_;
    const Speeds &speeds_;
    CountLimits limits_;
    uint64_t steps_;
    std::vector<double> sums_;
    std::vector<Choices> choices_;                   // by part; empty: the part has changed since
    std::vector<uint32_t> changed_;                  // parts, since the best division; some of them twice
    std::set<std::pair<double, uint32_t>> ranking_;  // parts by time
    std::minstd_rand random_;                        // with a fixed seed, for deterministic plans
};

// See search(). Places the items costliest first, each in the shortest part first, the fastest of those.
class Search {
public:
    Search(Parts &parts, const std::vector<double> &costs, const Speeds &speeds, CountLimits limits, uint64_t nodes)
        : best_(parts), costs_(costs), speeds_(speeds), limits_(limits), nodes_(nodes), items_(by_cost(costs)),
          orders_(costs.size() + 1, by_cost(speeds)), parts_(parts.size()), sums_(parts.size()), times_(parts.size()),
          missing_(limits.low * parts.size()), least_(makespan(parts, costs, speeds)),
          enough_(lower_bound(costs, speeds)) {}

    void run() { place(0); }

private:
    void place(size_t placed) {
        if (placed == items_.size()) {
            best_ = parts_;
            least_ = makespan(parts_, costs_, speeds_);
            return;
        }
        const uint32_t item = items_[placed];
        const std::vector<uint32_t> &order = orders_[placed];
        for (size_t i = 0; i < order.size() && nodes_ > 0 && least_ > enough_ * (1 + kNegligible); ++i) {
            const uint32_t part = order[i];
            const double sum = sums_[part];
            const double time = (sum + costs_[item]) / speeds_[part];
            if (time >= least_ * (1 - kNegligible)) {
                continue;
            }
            const size_t count = parts_[part].size();
            const bool same = i > 0 && sums_[order[i - 1]] == sum && speeds_[order[i - 1]] == speeds_[part] &&
                              parts_[order[i - 1]].size() == count;
            const size_t missing = missing_ - (count < limits_.low ? 1 : 0);
            if (same || count == limits_.high || missing > items_.size() - placed - 1) {
                continue;
            }
            --nodes_;
            sums_[part] += costs_[item];
            const double time_before = std::exchange(times_[part], time);
            const size_t missing_before = std::exchange(missing_, missing);
            parts_[part].push_back(item);
            order_after(placed, i);
            place(placed + 1);
            parts_[part].pop_back();
            missing_ = missing_before;
            times_[part] = time_before;
            sums_[part] = sum;
        }
    }

    // The order of the next item's choices: that of this one's, in which the part at `i` has grown.
    void order_after(size_t placed, size_t i) {
        const std::vector<uint32_t> &order = orders_[placed];
        std::vector<uint32_t> &next = orders_[placed + 1];
        const uint32_t grown = order[i];
        std::copy_n(order.begin(), i, next.begin());
        for (; i + 1 < order.size() && shorter(order[i + 1], grown); ++i) {
            next[i] = order[i + 1];
        }
        next[i] = grown;
        std::copy(order.begin() + static_cast<std::ptrdiff_t>(i) + 1, order.end(),
                  next.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    }

    bool shorter(uint32_t x, uint32_t y) const {
        return times_[x] != times_[y]     ? times_[x] < times_[y]
               : speeds_[x] != speeds_[y] ? speeds_[x] > speeds_[y]
                                          : x < y;
    }

    static constexpr double kNegligible = 1e-12;

    Parts &best_;
    const std::vector<double> &costs_;
    const Speeds &speeds_;
    CountLimits limits_;
    uint64_t nodes_;
    std::vector<uint32_t> items_;
    std::vector<std::vector<uint32_t>> orders_;  // of the parts, by the number of items placed: the shortest first
    Parts parts_;
    std::vector<double> sums_;
    std::vector<double> times_;  // of the parts
    size_t missing_;             // items still needed to bring every part to limits_.low
    double least_;               // makespan of best_
    double enough_;
};

}  // namespace

void refine(Parts &parts, const std::vector<double> &costs, const Speeds &speeds, CountLimits limits, uint64_t steps) {
    Refinement(parts, costs, speeds, limits, steps).run();
}

void search(Parts &parts, const std::vector<double> &costs, const Speeds &speeds, CountLimits limits, uint64_t nodes) {
    Search(parts, costs, speeds, limits, nodes).run();
}

}  // namespace odc

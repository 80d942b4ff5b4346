// SPDX-License-Identifier: Apache-2.0
// Differencing makes a start, Refinement improves it, Search is exhaustive; partition.h says how they combine.
#include "planner/partition.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <iterator>
#include <numeric>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <utility>

namespace odc {

std::vector<uint32_t> by_cost(const std::vector<double> &costs) {
    std::vector<uint32_t> items(costs.size());
    std::iota(items.begin(), items.end(), 0U);
    std::stable_sort(items.begin(), items.end(), [&](uint32_t x, uint32_t y) { return costs[x] > costs[y]; });
    return items;
}

namespace {

constexpr uint32_t kNone = UINT32_MAX;
constexpr size_t kCountedItems = 64;  // beyond this the counting bound of lower_bound is no better than the average

// The items of a part as a list linked through Differencing::next_, so that joining two takes constant time.
struct Chain {
    double sum = 0;
    uint32_t first = kNone;
    uint32_t last = kNone;
};

// A division of some of the items: its non-empty parts, costliest first.
struct Division {
    std::vector<Chain> chains;
    uint32_t order = 0;  // breaks ties of spread
    double spread = 0;   // costliest part minus cheapest part
};

bool costlier(const Chain &x, const Chain &y) { return x.sum != y.sum ? x.sum > y.sum : x.first < y.first; }

// Joins the two divisions of largest spread, costliest parts with cheapest, until one is left.
class Differencing {
public:
    Differencing(const std::vector<double> &costs, size_t parts)
        : costs_(costs), parts_(parts), next_(costs.size(), kNone) {}

    // Adds a division with one of `items` (costliest first) in each part.
    void add(const uint32_t *items, size_t count) {
        Division division;
        for (size_t i = 0; i < count; ++i) {
            division.chains.push_back({costs_[items[i]], items[i], items[i]});
        }
        push(std::move(division));
    }

    Parts run() {
        while (heap_.size() > 1) {
            const Division x = pop();
            const Division y = pop();
            push(joined(x, y));
        }
        return parts(heap_.front());
    }

private:
    static bool differs_less(const Division &x, const Division &y) {
        return x.spread != y.spread ? x.spread < y.spread : x.order > y.order;
    }

    void push(Division division) {
        const std::vector<Chain> &chains = division.chains;
        division.spread = chains.front().sum - (chains.size() < parts_ ? 0.0 : chains.back().sum);
        division.order = order_++;
        heap_.push_back(std::move(division));
        std::push_heap(heap_.begin(), heap_.end(), differs_less);
    }

    Division pop() {
        std::pop_heap(heap_.begin(), heap_.end(), differs_less);
        Division top = std::move(heap_.back());
        heap_.pop_back();
        return top;
    }

    Division joined(const Division &x, const Division &y) {
        const size_t in_x = x.chains.size();
        const size_t in_y = y.chains.size();
        Division out;
        out.chains.reserve(std::min(parts_, in_x + in_y));
        if (in_x + in_y <= parts_) {
            std::merge(x.chains.begin(), x.chains.end(), y.chains.begin(), y.chains.end(),
                       std::back_inserter(out.chains), costlier);
            return out;
        }
        for (size_t i = 0; i < parts_; ++i) {
            const size_t j = parts_ - 1 - i;
            if (i < in_x && j < in_y) {
                out.chains.push_back(linked(x.chains[i], y.chains[j]));
            } else {
                out.chains.push_back(i < in_x ? x.chains[i] : y.chains[j]);
            }
        }
        std::sort(out.chains.begin(), out.chains.end(), costlier);
        return out;
    }

    Chain linked(const Chain &x, const Chain &y) {
        next_[x.last] = y.first;
        return {x.sum + y.sum, x.first, y.last};
    }

    Parts parts(const Division &division) const {
        Parts out(parts_);
        for (size_t i = 0; i < division.chains.size(); ++i) {
            for (uint32_t item = division.chains[i].first; item != kNone; item = next_[item]) {
                out[i].push_back(item);
            }
        }
        return out;
    }

    const std::vector<double> &costs_;
    size_t parts_;
    std::vector<uint32_t> next_;
    std::vector<Division> heap_;
    uint32_t order_ = 0;
};

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
        while (parts_.size() > 1 && steps_ > 0 && least > enough) {
            perturb();
            descend();
            if (longest() <= least) {  // an equal one, too, as it has other neighbours
                best = parts_;
                least = longest();
            } else {
                restore(best);
            }
        }
    }

private:
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
        for (uint32_t part = 0; part < parts_.size(); ++part) {
            if (parts_[part] != best[part]) {
                ranking_.erase({time(part), part});
                choices_[part] = {};
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
        std::optional<Exchange> best;
        for (size_t give = 0; give < 3; ++give) {
            for (size_t take = 0; take < 3; ++take) {
                if (!allowed(longer, give, take) || !allowed(shorter, take, give)) {
                    continue;
                }
                const std::vector<Choice> &taken = choices(shorter)[take];
                size_t at = 0;
                for (const Choice &given : choices(longer)[give]) {
                    if (taken.empty()) {
                        break;
                    }
                    const double wanted = given.sum - even;
                    while (at + 1 < taken.size() && taken[at + 1].sum <= wanted) {
                        ++at;
                    }
                    for (size_t i = at; i < std::min(at + 2, taken.size()); ++i) {
                        const double left = taken[i].sum - wanted;  // above the even sum of the longer part
                        const double above = left > 0 ? left * longer_pace : -left * shorter_pace;
                        if (above < nearest) {
                            nearest = above;
                            below = left > 0 ? left * shorter_pace : -left * longer_pace;
                            best = Exchange{longer, shorter, given, taken[i], 0, 0};
                        }
                    }
                }
                spend(choices(longer)[give].size() + taken.size());
            }
        }
        if (best) {
            const double middle = (sums_[longer] + sums_[shorter]) / speeds;
            best->most = middle + nearest;
            best->least = middle - below;
        }
        return best;
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
            std::stable_sort(of_size.begin(), of_size.end(),
                             [](const Choice &x, const Choice &y) { return x.sum < y.sum; });
            spend(of_size.size() * kStepsToSort);
        }
        return out;
    }

    bool apply(const std::optional<Exchange> &exchange) {
        if (!exchange) {
            return false;
        }
        const auto [longer, shorter, given, taken, most, least] = *exchange;
        for (const uint32_t part : {longer, shorter}) {
            ranking_.erase({time(part), part});
            choices_[part] = {};
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
    std::set<std::pair<double, uint32_t>> ranking_;  // parts by time
    std::minstd_rand random_;                        // with a fixed seed, for deterministic plans
};

// See search(). Places the items costliest first, each in the shortest part first, the fastest of those.
class Search {
public:
    Search(Parts &parts, const std::vector<double> &costs, const Speeds &speeds, CountLimits limits, uint64_t nodes)
        : best_(parts), costs_(costs), speeds_(speeds), limits_(limits), nodes_(nodes), items_(by_cost(costs)),
          parts_(parts.size()), sums_(parts.size(), 0.0), least_(makespan(parts, costs, speeds)),
          enough_(lower_bound(costs, speeds)) {}

    void run() {
        missing_ = limits_.low * parts_.size();
        place(0);
    }

private:
    void place(size_t placed) {
        if (placed == items_.size()) {
            best_ = parts_;
            least_ = makespan(parts_, costs_, speeds_);
            return;
        }
        const uint32_t item = items_[placed];
        std::vector<uint32_t> order(parts_.size());
        std::iota(order.begin(), order.end(), 0U);
        std::stable_sort(order.begin(), order.end(), [&](uint32_t x, uint32_t y) {
            const double of_x = sums_[x] / speeds_[x];
            const double of_y = sums_[y] / speeds_[y];
            return of_x != of_y ? of_x < of_y : speeds_[x] > speeds_[y];
        });
        for (size_t i = 0; i < order.size() && nodes_ > 0 && least_ > enough_ * (1 + kNegligible); ++i) {
            const uint32_t part = order[i];
            if ((sums_[part] + costs_[item]) / speeds_[part] >= least_ * (1 - kNegligible)) {
                continue;
            }
            const size_t count = parts_[part].size();
            const bool same = i > 0 && sums_[order[i - 1]] == sums_[part] && speeds_[order[i - 1]] == speeds_[part] &&
                              parts_[order[i - 1]].size() == count;
            const size_t missing = missing_ - (count < limits_.low ? 1 : 0);
            if (same || count == limits_.high || missing > items_.size() - placed - 1) {
                continue;
            }
            --nodes_;
            const double sum = std::exchange(sums_[part], sums_[part] + costs_[item]);
            const size_t missing_before = std::exchange(missing_, missing);
            parts_[part].push_back(item);
            place(placed + 1);
            parts_[part].pop_back();
            missing_ = missing_before;
            sums_[part] = sum;
        }
    }

    static constexpr double kNegligible = 1e-12;

    Parts &best_;
    const std::vector<double> &costs_;
    const Speeds &speeds_;
    CountLimits limits_;
    uint64_t nodes_;
    std::vector<uint32_t> items_;
    Parts parts_;
    std::vector<double> sums_;
    size_t missing_ = 0;  // items still needed to bring every part to limits_.low
    double least_;        // makespan of best_
    double enough_;
};

}  // namespace

Parts largest_differencing(const std::vector<double> &costs, size_t parts) {
    Differencing differencing(costs, parts);
    for (const uint32_t item : by_cost(costs)) {
        differencing.add(&item, 1);
    }
    return differencing.run();
}

Parts largest_differencing_equal(const std::vector<double> &costs, size_t parts) {
    // Items of similar cost start in different parts. The last, incomplete group has the cheapest items.
    const std::vector<uint32_t> items = by_cost(costs);
    Differencing differencing(costs, parts);
    for (size_t begin = 0; begin < items.size(); begin += parts) {
        differencing.add(&items[begin], std::min(parts, items.size() - begin));
    }
    return differencing.run();
}

Parts round_robin(size_t items, size_t parts) {
    Parts out(parts);
    for (size_t item = 0; item < items; ++item) {
        out[item % parts].push_back(static_cast<uint32_t>(item));
    }
    return out;
}

Parts longest_first(const std::vector<double> &costs, size_t parts) {
    using Part = std::pair<double, size_t>;
    std::priority_queue<Part, std::vector<Part>, std::greater<>> cheapest;
    for (size_t part = 0; part < parts; ++part) {
        cheapest.emplace(0.0, part);
    }
    Parts out(parts);
    for (const uint32_t item : by_cost(costs)) {
        const auto [sum, part] = cheapest.top();
        cheapest.pop();
        out[part].push_back(item);
        cheapest.emplace(sum + costs[item], part);
    }
    return out;
}

Parts first_to_end(const std::vector<double> &costs, const Speeds &speeds) {
    std::vector<double> paces;
    for (const double speed : speeds) {
        paces.push_back(1 / speed);
    }
    Parts out(speeds.size());
    std::vector<double> sums(speeds.size());
    for (const uint32_t item : by_cost(costs)) {
        size_t first = 0;
        double end = (sums[0] + costs[item]) * paces[0];
        for (size_t part = 1; part < paces.size(); ++part) {
            const double other = (sums[part] + costs[item]) * paces[part];
            first = other < end ? part : first;
            end = other < end ? other : end;
        }
        sums[first] += costs[item];
        out[first].push_back(item);
    }
    return out;
}

Parts matched(const Parts &parts, const std::vector<double> &costs, const Speeds &speeds) {
    std::vector<double> sums;
    for (const std::vector<uint32_t> &part : parts) {
        sums.push_back(std::accumulate(part.begin(), part.end(), 0.0,
                                       [&](double sum, uint32_t item) { return sum + costs[item]; }));
    }
    sums.resize(speeds.size());
    const std::vector<uint32_t> costliest = by_cost(sums);
    const std::vector<uint32_t> fastest = by_cost(speeds);
    Parts out(speeds.size());
    for (size_t i = 0; i < parts.size(); ++i) {
        out[fastest[i]] = parts[costliest[i]];
    }
    return out;
}

void refine(Parts &parts, const std::vector<double> &costs, const Speeds &speeds, CountLimits limits, uint64_t steps) {
    Refinement(parts, costs, speeds, limits, steps).run();
}

void search(Parts &parts, const std::vector<double> &costs, const Speeds &speeds, CountLimits limits, uint64_t nodes) {
    Search(parts, costs, speeds, limits, nodes).run();
}

double makespan(const Parts &parts, const std::vector<double> &costs, const Speeds &speeds) {
    double most = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
        std::vector<uint32_t> part = parts[i];
        std::sort(part.begin(), part.end());
        double sum = 0;
        for (const uint32_t item : part) {
            sum += costs[item];
        }
        most = std::max(most, sum / speeds[i]);
    }
    return most;
}

double lower_bound(const std::vector<double> &costs, const Speeds &speeds) {
    const size_t parts = speeds.size();
    Speeds fastest = speeds;
    std::sort(fastest.begin(), fastest.end(), std::greater<>());
    std::vector<double> sorted = costs;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    double bound =
        std::accumulate(sorted.begin(), sorted.end(), 0.0) / std::accumulate(speeds.begin(), speeds.end(), 0.0);
    // Of the j * parts + 1 costliest items some part holds j + 1; the cheapest they can be are the last j + 1.
    for (size_t j = 0; j <= kCountedItems && j * parts < sorted.size(); ++j) {
        const auto last = sorted.begin() + static_cast<std::ptrdiff_t>(j * parts);
        bound = std::max(bound, std::accumulate(last - static_cast<std::ptrdiff_t>(j), last + 1, 0.0) / fastest[0]);
    }
    if (fastest.front() == fastest.back()) {
        return bound;
    }
    // The j costliest items run on at most j parts: each alone, the costlier on the faster, or two on one.
    double cost = 0;
    double speed = 0;
    double alone = 0;
    for (size_t j = 0; j < std::min(parts, sorted.size()); ++j) {
        cost += sorted[j];
        speed += fastest[j];
        alone = std::max(alone, sorted[j] / fastest[j]);
        const double together = j == 0 ? alone : (sorted[j - 1] + sorted[j]) / fastest[0];
        bound = std::max({bound, cost / speed, std::min(alone, together)});
    }
    return bound;
}

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
#include "planner/partition.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <queue>
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
    // Some part holds j + 1 of the j * parts + 1 costliest items, which cost at least what the last j + 1 of them cost.
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

// SPDX-License-Identifier: Apache-2.0
// Chooses the samples of each minibatch of `odc replay`, plans them and sets the emulated device's speed.
#include "replay/schedule.h"

#include "cli/exit.h"
#include "cli/lengths.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <random>

namespace odc_tool {
namespace {

// The share of the requested seconds for compute.
constexpr double kComputeShare = 0.95;

// Shuffled passes over the samples, one after another.
class SampleStream {
public:
    SampleStream(size_t count, uint64_t seed) : random_(seed), order_(count), next_(count) {
        std::iota(order_.begin(), order_.end(), size_t{0});
    }

    size_t next() {
        if (next_ == order_.size()) {
            shuffle();
            next_ = 0;
        }
        return order_[next_++];
    }

private:
    // Not std::shuffle, whose result differs between standard libraries.
    void shuffle() {
        for (size_t i = order_.size(); i > 1; --i) {
            std::swap(order_[i - 1], order_[random_() % i]);
        }
    }

    std::mt19937_64 random_;
    std::vector<size_t> order_;
    size_t next_;
};

std::vector<Minibatch> planned(const Planner &planner, const std::vector<std::vector<size_t>> &minibatches) {
    std::vector<Minibatch> out;
    for (const std::vector<size_t> &samples : minibatches) {
        Minibatch &minibatch = out.emplace_back();
        minibatch.samples = samples;
        for (const size_t sample : samples) {
            minibatch.total.add_sample(sample);
            minibatch.costs.add_sample(planner.cost_of(sample));
        }
        for (int32_t policy : {ODC_LOCAL_SORT, ODC_LB_MICRO, ODC_LB_MINI, ODC_SORTED_ROWS}) {
            minibatch.plans[static_cast<size_t>(policy - ODC_LOCAL_SORT)] = planner.plan(samples, policy);
        }
    }
    return out;
}

// Exchanges samples within each window of the first `count` minibatches.
std::vector<std::vector<size_t>> looked_ahead(const Planner &planner, size_t ahead, size_t count,
                                              const std::vector<std::vector<size_t>> &given, Exchanged &total) {
    std::vector<std::vector<size_t>> out;
    for (size_t begin = 0; begin < count; begin += ahead) {
        const size_t end = std::min(begin + ahead, count);
        const std::vector<std::vector<size_t>> window(given.begin() + static_cast<std::ptrdiff_t>(begin),
                                                      given.begin() + static_cast<std::ptrdiff_t>(end));
        odc_window_summary summary{};
        for (std::vector<size_t> &minibatch : planner.exchanged(window, summary)) {
            out.push_back(std::move(minibatch));
        }
        const double share = double(end - begin) / double(count);
        total.moved += summary.moved * share;
        total.displacement += summary.displacement * share;
        total.token_variation += summary.token_variation * share;
        total.token_variation_before += summary.token_variation_before * share;
    }
    out.insert(out.end(), given.begin() + static_cast<std::ptrdiff_t>(count), given.end());
    return out;
}

size_t minibatch_count(const ReplaySettings &settings, size_t lengths, size_t per_minibatch) {
    if (settings.minibatches > 0) {
        return static_cast<size_t>(settings.minibatches);
    }
    return std::clamp<size_t>(lengths / per_minibatch, 1, kMostMinibatches);
}

std::vector<std::vector<size_t>> draw_minibatches(const ReplaySettings &settings, size_t lengths, size_t count,
                                                  size_t per_minibatch) {
    SampleStream stream(lengths, settings.seed);
    std::vector<std::vector<size_t>> out(count);
    for (std::vector<size_t> &samples : out) {
        samples.resize(per_minibatch);
        std::generate(samples.begin(), samples.end(), [&] { return stream.next(); });
    }
    return out;
}

}  // namespace

std::vector<Arm> make_arms(const ReplaySettings &settings) {
    if (settings.hosts > 1) {
        return {kBaseline, kBestCollective, kOdcLbMini, kOdcCache, kOdcCacheAndSums};
    }
    // Collectives cannot run LB-Mini: its microbatch counts differ between ranks.
    std::vector<Arm> arms{kBaseline, kBestCollective, kOdcLbMini};
    if (settings.claim == 0) {
        arms = {{Schedule::Collective, ODC_LOCAL_SORT}, kBaseline, kBestCollective, {Schedule::Odc, ODC_LOCAL_SORT},
                {Schedule::Odc, ODC_LB_MICRO},          kOdcLbMini};
    }
    Order order = Order::Data;
    if (settings.lookahead > 1) {
        order = Order::Lookahead;
        arms.push_back({Schedule::Collective, ODC_SORTED_ROWS, order});
        arms.push_back({Schedule::Odc, ODC_LB_MINI, order});
    }
    if (settings.claim > 0) {
        arms.push_back({Schedule::Odc, ODC_LB_MINI, order, Speeds::Measured});
        arms.push_back({Schedule::Odc, ODC_LB_MINI, order, Speeds::Equal, 1});
        arms.push_back({Schedule::Odc, ODC_LB_MINI, order, Speeds::Measured, settings.claim});
    }
    return arms;
}

const char *schedule_name(Schedule schedule) {
    switch (schedule) {
        case Schedule::Collective: return "collective";
        case Schedule::Odc: return "odc";
        case Schedule::Waiting: return "waiting";
        case Schedule::Prefetching: return "prefetching";
    }
    return "";
}

std::string arm_name(const Arm &arm) {
    return std::string(schedule_name(arm.schedule)) +
           (arm.tail < 1 ? std::string(" + ") + policy_name(arm.policy) : "") +
           (arm.order == Order::Lookahead ? " + lookahead" : "") + (arm.speeds == Speeds::Measured ? " + speeds" : "") +
           (arm.tail > 0 ? " + claims" : "") + (arm.cache != NodeCache::Off ? " + node cache" : "") +
           (arm.cache == NodeCache::WithSums ? " + sums" : "");
}

Crossing Arm::crossing() const {
    if (schedule == Schedule::Collective) {
        return Crossing::Ring;
    }
    switch (cache) {
        case NodeCache::Off: return Crossing::Flat;
        case NodeCache::Alone: return Crossing::Cache;
        case NodeCache::WithSums: return Crossing::CacheAndSums;
    }
    return Crossing::Flat;
}

double Workload::expected(const Arm &arm, size_t number) const {
    if (!arm.fixed()) {
        return bound(arm, number);
    }
    const Plan &plan = minibatch(arm, number).plan(arm.policy);
    return arm.schedule == Schedule::Collective ? plan.ideal_of_collectives(speeds[number], layers)
                                                : plan.ideal_of_odc(speeds[number]);
}

std::vector<HostTraffic> Workload::traffic(const Arm &arm, size_t number) const {
    return hosts->traffic(arm.crossing(), minibatch(arm, number).plan(arm.policy));
}

double Workload::duration(const Arm &arm, size_t number) const {
    const double compute = expected(arm, number);
    return hosts ? std::max(compute, hosts->seconds(traffic(arm, number))) : compute;
}

double Workload::duration(const Arm &arm) const {
    double sum = 0;
    for (size_t number = 0; number < count(); ++number) {
        sum += duration(arm, number);
    }
    return sum;
}

double Workload::bound(const Arm &arm) const {
    double sum = 0;
    for (size_t number = 0; number < count(); ++number) {
        sum += bound(arm, number);
    }
    return sum;
}

double Workload::expected(const Arm &arm) const {
    double sum = 0;
    for (size_t number = 0; number < count(); ++number) {
        sum += expected(arm, number);
    }
    return sum;
}

std::vector<uint64_t> replay_lengths(const ReplaySettings &settings) {
    const std::filesystem::file_type kind = std::filesystem::status(settings.lengths).type();
    if (settings.lengths == "-" || kind == std::filesystem::file_type::fifo ||
        kind == std::filesystem::file_type::character) {
        throw Exit{2, "the ranks of a replay cannot share standard input or a pipe; give --lengths a file"};
    }
    if (!settings.corpus.empty()) {
        return corpus_lengths(settings.corpus, settings.max_tokens);
    }
    return settings.lengths.empty() ? builtin_lengths(settings.max_tokens)
                                    : read_lengths(settings.lengths, settings.max_tokens);
}

void check_workload(const ReplaySettings &settings, size_t lengths, int ranks) {
    constexpr uint64_t kExactFloats = uint64_t{1} << 24;
    constexpr uint64_t kMostSamples = kExactFloats / (Gradient::kPeriod * kLargestWeight);
    const uint64_t samples = static_cast<uint64_t>(ranks) * static_cast<uint64_t>(settings.minibatch);
    if (samples > kMostSamples) {
        throw Exit{2, fmt::format("a minibatch of {} samples is too large for sums that are exact in f32; lower "
                                  "--minibatch to {}",
                                  samples, kMostSamples / static_cast<uint64_t>(ranks))};
    }
    check_hosts(settings.hosts, ranks);
    check_slow(settings.slow, static_cast<size_t>(ranks), minibatch_count(settings, lengths, samples));
}

Workload make_workload(const ReplaySettings &settings, const Model &model, const Planner &planner) {
    const std::vector<uint64_t> &lengths = planner.lengths();
    const auto ranks = static_cast<size_t>(planner.ranks());
    check_workload(settings, lengths.size(), planner.ranks());
    const size_t per_minibatch = ranks * static_cast<size_t>(settings.minibatch);
    const size_t count = minibatch_count(settings, lengths.size(), per_minibatch);
    Workload workload;
    workload.arms = make_arms(settings);
    workload.warm_up = settings.claim > 0 ? kWarmUp : 0;
    const auto given = draw_minibatches(settings, lengths.size(), count + workload.warm_up, per_minibatch);
    workload.minibatches[0] = planned(planner, given);
    if (settings.lookahead > 1) {
        workload.minibatches[1] = planned(
            planner, looked_ahead(planner, static_cast<size_t>(settings.lookahead), count, given, workload.exchanged));
    }
    const DeviceSpeeds speeds(settings.noise, settings.slow, settings.seed, ranks);
    for (size_t number = 0; number < given.size(); ++number) {
        workload.speeds.push_back(speeds.at(number));
    }
    workload.samples = count * per_minibatch;
    workload.layers = model.layers;
    workload.lengths = lengths.size();
    workload.longest = *std::max_element(lengths.begin(), lengths.end());
    workload.mean_length =
        double(std::accumulate(lengths.begin(), lengths.end(), uint64_t{0})) / double(lengths.size());
    if (settings.hosts > 1) {
        const uint64_t elements = scaled_layer(model, settings.scale);
        const double of_model = double(model.layer_elements) / double(elements);
        workload.hosts.emplace(settings.hosts, planner.ranks(), model.layers, elements,
                               settings.sum == ODC_SUM_EXACT ? kExactSumBytes : kGradientBytes,
                               8 * of_model / settings.bandwidth);
    }
    double cost = 0;
    for (const Arm &arm : workload.arms) {
        cost += workload.duration(arm);
    }
    for (size_t number = count; number < given.size(); ++number) {
        cost += workload.expected(workload.arms.back(), number);
    }
    workload.ns_per_cost = kComputeShare * settings.seconds * 1e9 / cost;
    return workload;
}

std::vector<Run> run_order(const Workload &workload) {
    std::vector<Run> runs;
    for (size_t minibatch = 0; minibatch < workload.count(); ++minibatch) {
        for (size_t place = 0; place < workload.arms.size(); ++place) {
            runs.push_back({minibatch, (place + minibatch) % workload.arms.size()});
        }
    }
    return runs;
}

}  // namespace odc_tool

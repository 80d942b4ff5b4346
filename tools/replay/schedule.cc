// SPDX-License-Identifier: Apache-2.0
// Chooses the samples of each minibatch of `odc replay`, plans them and sets the emulated device's speed.
#include "replay/schedule.h"

#include "cli/exit.h"
#include "cli/lengths.h"

#include <fmt/format.h>

#include <algorithm>
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

Plan make_plan(const ReplaySettings &settings, const Cost &cost, int32_t policy, const std::vector<size_t> &samples,
               const std::vector<uint64_t> &lengths, int ranks) {
    std::vector<uint64_t> tokens;
    for (size_t sample : samples) {
        tokens.push_back(lengths[sample]);
    }
    odc_plan_request request{};
    request.struct_size = sizeof request;
    request.lengths = tokens.data();
    request.count = tokens.size();
    request.max_tokens = settings.max_tokens;
    request.a = cost.a;
    request.b = cost.b;
    request.ranks = ranks;
    request.policy = policy;
    std::vector<int32_t> rank_of(samples.size());
    std::vector<int32_t> microbatch_of(samples.size());
    if (odc_plan(&request, rank_of.data(), microbatch_of.data(), nullptr) != ODC_OK) {
        throw Exit{2, odc_last_error()};
    }
    Plan plan;
    plan.ranks.resize(static_cast<size_t>(ranks));
    for (size_t i = 0; i < samples.size(); ++i) {
        auto &microbatches = plan.ranks[static_cast<size_t>(rank_of[i])];
        const auto place = static_cast<size_t>(microbatch_of[i]);
        microbatches.resize(std::max(microbatches.size(), place + 1));
        microbatches[place].cost += cost.of(tokens[i]);
        microbatches[place].gradient.add_sample(samples[i]);
    }
    return plan;
}

size_t minibatch_count(const ReplaySettings &settings, size_t lengths, size_t per_minibatch) {
    if (settings.minibatches > 0) {
        return static_cast<size_t>(settings.minibatches);
    }
    return std::clamp<size_t>(lengths / per_minibatch, 1, kMostMinibatches);
}

}  // namespace

const char *schedule_name(Schedule schedule) {
    switch (schedule) {
        case Schedule::Collective: return "collective";
        case Schedule::Odc: return "odc";
        case Schedule::Waiting: return "waiting";
        case Schedule::Prefetching: return "prefetching";
    }
    return "";
}

uint32_t Gradient::of_layer(int layer) const {
    uint32_t sum = 0;
    for (size_t residue = 0; residue < kPeriod; ++residue) {
        sum += residues_[residue] * static_cast<uint32_t>(1 + (residue + static_cast<size_t>(layer)) % kPeriod);
    }
    return sum;
}

double Plan::ideal_cost(Schedule schedule) const {
    double longest = 0;
    std::vector<double> slowest;  // rank of each microbatch
    for (const auto &microbatches : ranks) {
        double sum = 0;
        slowest.resize(std::max(slowest.size(), microbatches.size()));
        for (size_t i = 0; i < microbatches.size(); ++i) {
            sum += microbatches[i].cost;
            slowest[i] = std::max(slowest[i], microbatches[i].cost);
        }
        longest = std::max(longest, sum);
    }
    return schedule == Schedule::Collective ? std::accumulate(slowest.begin(), slowest.end(), 0.0) : longest;
}

double Workload::ideal_cost(const Arm &arm) const {
    double sum = 0;
    for (const Minibatch &minibatch : minibatches) {
        sum += minibatch.plan(arm.policy).ideal_cost(arm.schedule);
    }
    return sum;
}

std::vector<uint64_t> replay_lengths(const ReplaySettings &settings) {
    if (settings.lengths == "-") {
        throw Exit{2, "the ranks of a replay cannot share standard input; give --lengths a file"};
    }
    if (!settings.corpus.empty()) {
        return corpus_lengths(settings.corpus, settings.max_tokens);
    }
    return settings.lengths.empty() ? builtin_lengths(settings.max_tokens)
                                    : read_lengths(settings.lengths, settings.max_tokens);
}

void check_minibatch(const ReplaySettings &settings, int ranks) {
    constexpr uint64_t kExactFloats = uint64_t{1} << 24;
    constexpr uint64_t kMostSamples = kExactFloats / (Gradient::kPeriod * kLargestWeight);
    const uint64_t samples = static_cast<uint64_t>(ranks) * static_cast<uint64_t>(settings.minibatch);
    if (samples > kMostSamples) {
        throw Exit{2, fmt::format("a minibatch of {} samples is too large for sums that are exact in f32; lower "
                                  "--minibatch to {}",
                                  samples, kMostSamples / static_cast<uint64_t>(ranks))};
    }
}

Workload make_workload(const ReplaySettings &settings, const Model &model, const std::vector<uint64_t> &lengths,
                       int ranks) {
    check_minibatch(settings, ranks);
    const size_t per_minibatch = static_cast<size_t>(ranks) * static_cast<size_t>(settings.minibatch);
    SampleStream stream(lengths.size(), settings.seed);
    Workload workload;
    workload.minibatches.resize(minibatch_count(settings, lengths.size(), per_minibatch));
    for (Minibatch &minibatch : workload.minibatches) {
        std::vector<size_t> samples(per_minibatch);
        for (size_t &sample : samples) {
            sample = stream.next();
            minibatch.total.add_sample(sample);
        }
        for (int32_t policy : {ODC_LOCAL_SORT, ODC_LB_MICRO, ODC_LB_MINI}) {
            minibatch.plans[static_cast<size_t>(policy - ODC_LOCAL_SORT)] =
                make_plan(settings, model.cost, policy, samples, lengths, ranks);
        }
    }
    workload.samples = workload.minibatches.size() * per_minibatch;
    workload.lengths = lengths.size();
    workload.longest = *std::max_element(lengths.begin(), lengths.end());
    workload.mean_length =
        double(std::accumulate(lengths.begin(), lengths.end(), uint64_t{0})) / double(lengths.size());
    double cost = 0;
    for (const Arm &arm : kArms) {
        cost += workload.ideal_cost(arm);
    }
    workload.ns_per_cost = kComputeShare * settings.seconds * 1e9 / cost;
    return workload;
}

std::vector<Run> run_order(size_t minibatches) {
    std::vector<Run> runs;
    for (size_t minibatch = 0; minibatch < minibatches; ++minibatch) {
        for (size_t place = 0; place < kArms.size(); ++place) {
            runs.push_back({minibatch, (place + minibatch) % kArms.size()});
        }
    }
    return runs;
}

}  // namespace odc_tool

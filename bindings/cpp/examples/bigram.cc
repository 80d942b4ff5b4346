// SPDX-License-Identifier: Apache-2.0
// Trains a byte-level bigram language model with hand-written gradients: the smallest program that shows the purpose of ODC.
// Each minibatch is planned by LB-Mini, so ranks run different numbers of microbatches, and wait for each other once.
//
//     odc run -n 4 -- ./bigram --minibatches 50
//
// Rank 0 prints a line a minibatch and, at the end, sums over the parameters, by which runs are compared:
//
//     [0] minibatch 0: loss 5.545177444480 a byte over 3672 bytes, microbatches by rank 6 5 5 7
//     [0] minibatch 1: loss 5.148896943134 a byte over 3615 bytes, microbatches by rank 5 5 5 5
//     [0] parameters of alone: 10.576133297407 299.570960331171
//     [0] parameters of after: 3.134189403782 226.446655118197
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <odc/odc.hpp>
#include <string>
#include <vector>

#include "corpus.h"
#include "options.h"
#include "report.h"

namespace {

constexpr size_t kBytes = 256;
constexpr size_t kMaxBytes = 200;  // of a paragraph, and of a microbatch
constexpr odc::Cost kCost{1, 0};   // like attention: ranks with long texts get fewer of them
constexpr float kLearningRate = 4;

// The scores of the next byte: a bias, and a row by the previous byte.
struct Values {
    std::vector<float> alone = std::vector<float>(kBytes);
    std::vector<float> after = std::vector<float>(kBytes * kBytes);
};

// Adds the gradients of a text's loss, summed over its bytes, and returns the loss.
double add_gradients(const Values &model, const std::string &text, Values &gradients) {
    double loss = 0;
    size_t last = '\n';
    for (const char character : text) {
        const size_t next = static_cast<unsigned char>(character);
        std::array<double, kBytes> scores{};
        double total = 0;
        for (size_t i = 0; i < kBytes; ++i) {
            scores[i] = std::exp(double{model.alone[i]} + double{model.after[last * kBytes + i]});
            total += scores[i];
        }
        loss -= std::log(scores[next] / total);
        for (size_t i = 0; i < kBytes; ++i) {
            const double gradient = scores[i] / total - (i == next ? 1 : 0);
            gradients.alone[i] += static_cast<float>(gradient);
            gradients.after[last * kBytes + i] += static_cast<float>(gradient);
        }
        last = next;
    }
    return loss;
}

void step(odc::Shard<float, float> &shard, double bytes) {
    const auto slice = shard.slice();
    for (size_t i = 0; i < slice.parameters.size(); ++i) {
        slice.parameters[i] -= kLearningRate * slice.gradients[i] / static_cast<float>(bytes);
    }
}

void train(const Options &options) {
    Corpus corpus(options.data, kMaxBytes);
    odc::Context context = odc::Context::join();
    auto alone = context.register_shard<float, float>({"alone", kBytes});
    auto after = context.register_shard<float, float>({"after", kBytes * kBytes});
    Values model;
    for (size_t minibatch = 0; minibatch < options.minibatches; ++minibatch) {
        const std::vector<std::string> samples = corpus.take(options.paragraphs);
        std::vector<uint64_t> lengths;
        std::transform(samples.begin(), samples.end(), std::back_inserter(lengths),
                       [](const std::string &sample) { return sample.size(); });
        const odc::Plan plan = odc::plan(lengths, context.size(), kMaxBytes, odc::Policy::LbMini, kCost);
        std::array<double, 2> totals{};  // loss and bytes
        context.publish();
        for (const auto &microbatch : plan.ranks[static_cast<size_t>(context.rank())]) {
            alone.gather(model.alone);
            after.gather(model.after);
            Values gradients;
            for (const size_t sample : microbatch) {
                totals[0] += add_gradients(model, samples[sample], gradients);
                totals[1] += static_cast<double>(samples[sample].size());
            }
            alone.scatter_add(gradients.alone);
            after.scatter_add(gradients.after);
        }
        context.sync_reduce(totals, odc::Reduction::Sum);
        step(alone, totals[1]);
        step(after, totals[1]);
        if (context.rank() == 0) {
            report_minibatch(minibatch, totals[0], totals[1], plan);
        }
    }
    context.publish();
    if (context.rank() == 0) {
        alone.gather(model.alone);
        after.gather(model.after);
        report_parameters<float>("alone", model.alone);
        report_parameters<float>("after", model.after);
    }
    context.sync();
}

}  // namespace

int main(int argc, char **argv) try { train(Options(argc, argv)); } catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}

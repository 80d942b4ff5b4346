// SPDX-License-Identifier: Apache-2.0
// Trains a byte-level language model of libtorch (embedding, GRU, linear) over ODC: each layer is a shard, gathered before its
// forward and added to after backward; the optimizer, Adam, works on this rank's slices only. Each minibatch is planned by
// LB-Mini, so ranks run different numbers of microbatches, and wait for each other once.
//
//     odc run -n 4 -- ./train --minibatches 50
//
// Rank 0 prints a line a minibatch and, at the end, sums over the parameters, by which runs are compared:
//
//     [0] minibatch 0: loss 5.583959469641 a byte over 3425 bytes, microbatches by rank 6 6 6 6
//     [0] minibatch 1: loss 5.516943027407 a byte over 3140 bytes, microbatches by rank 5 6 5 5
//     [0] parameters of embed: 4154.429973214530 195232.972153031238
//     [0] parameters of gru: 50.925915180585 2448.578620657068
//     [0] parameters of predict: 87.809938377709 4189.973485677099
#include <torch/torch.h>

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

constexpr int64_t kBytes = 256;
constexpr int64_t kEmbedding = 16;
constexpr int64_t kHidden = 32;
constexpr size_t kMaxBytes = 160;  // of a paragraph, and of a microbatch
constexpr odc::Cost kCost{1, 0};   // like attention: ranks with long texts get fewer of them

odc::span<double> elements_of(const torch::Tensor &flat) {
    return {flat.data_ptr<double>(), static_cast<size_t>(flat.numel())};
}

// A module with its parameters and gradients in two flat tensors, and its shard.
class Layer {
public:
    Layer(odc::Context &context, const std::string &name, torch::nn::Module &module) {
        module.to(torch::kFloat64);
        int64_t numel = 0;
        for (const torch::Tensor &parameter : module.parameters()) {
            numel += parameter.numel();
        }
        full_ = torch::zeros({numel}, torch::kFloat64);
        gradients_ = torch::zeros_like(full_);
        int64_t offset = 0;
        for (torch::Tensor parameter : module.parameters()) {
            const int64_t end = offset + parameter.numel();
            const torch::Tensor place = full_.slice(0, offset, end).view(parameter.sizes());
            place.copy_(parameter.detach());
            parameter.set_data(place);
            parameter.mutable_grad() = gradients_.slice(0, offset, end).view(parameter.sizes());
            offset = end;
        }
        shard_ = context.register_shard<double, double>({name, static_cast<uint64_t>(numel)});
        const auto slice = shard_.slice();
        std::copy_n(full_.data_ptr<double>() + slice.offset, slice.parameters.size(), slice.parameters.begin());
        mean_.resize(slice.parameters.size());
        square_.resize(slice.parameters.size());
    }

    void start() { gather_ = shard_.gather_start(elements_of(full_)); }
    void await() { gather_.wait(); }

    void add_gradients() {
        shard_.scatter_add(elements_of(gradients_));
        gradients_.zero_();
    }

    // Adam's state for this rank's slice.
    void step(double number, double bytes) {
        const auto slice = shard_.slice();
        for (size_t i = 0; i < slice.parameters.size(); ++i) {
            const double gradient = slice.gradients[i] / bytes;
            mean_[i] = 0.9 * mean_[i] + 0.1 * gradient;
            square_[i] = 0.999 * square_[i] + 0.001 * gradient * gradient;
            const double mean = mean_[i] / (1 - std::pow(0.9, number));
            const double square = square_[i] / (1 - std::pow(0.999, number));
            slice.parameters[i] -= 0.005 * mean / (std::sqrt(square) + 1e-8);
        }
    }

    void report() {
        start();
        await();
        report_parameters<double>(shard_.name().c_str(), elements_of(full_));
    }

private:
    torch::Tensor full_, gradients_;
    odc::Shard<double, double> shard_;
    odc::Operation gather_;  // into full_, so it is destroyed first
    std::vector<double> mean_, square_;
};

class Model {
public:
    explicit Model(odc::Context &context)
        : embed_(kBytes, kEmbedding), gru_(torch::nn::GRUOptions(kEmbedding, kHidden).batch_first(true)),
          predict_(kHidden, kBytes), layers_(make_layers(context)) {}

    // Adds a microbatch's gradients into their owners' accumulators and returns the loss, summed over bytes.
    double train(const std::vector<std::string> &samples, const std::vector<size_t> &microbatch) {
        const auto [inputs, targets] = batch_of(samples, microbatch);
        for (Layer &layer : layers_) {
            layer.start();
        }
        layers_[0].await();
        const torch::Tensor embedded = embed_->forward(inputs);
        layers_[1].await();
        const torch::Tensor hidden = std::get<0>(gru_->forward(embedded));
        layers_[2].await();
        const torch::Tensor scores = predict_->forward(hidden).view({-1, kBytes});
        const auto summed = torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum).ignore_index(-1);
        const torch::Tensor loss = torch::nn::functional::cross_entropy(scores, targets.view(-1), summed);
        loss.backward();
        for (Layer &layer : layers_) {
            layer.add_gradients();
        }
        return loss.item<double>();
    }

    std::vector<Layer> &layers() { return layers_; }

private:
    std::vector<Layer> make_layers(odc::Context &context) {
        std::vector<Layer> layers;
        layers.emplace_back(context, "embed", *embed_);
        layers.emplace_back(context, "gru", *gru_);
        layers.emplace_back(context, "predict", *predict_);
        return layers;
    }

    // Each byte, after a newline at first, and the next one; -1 after a text's end.
    static std::pair<torch::Tensor, torch::Tensor> batch_of(const std::vector<std::string> &samples,
                                                            const std::vector<size_t> &microbatch) {
        size_t longest = 0;
        for (const size_t sample : microbatch) {
            longest = std::max(longest, samples[sample].size());
        }
        const std::array<int64_t, 2> sizes{static_cast<int64_t>(microbatch.size()), static_cast<int64_t>(longest)};
        torch::Tensor inputs = torch::zeros(sizes, torch::kInt64), targets = torch::full(sizes, -1, torch::kInt64);
        for (size_t row = 0; row < microbatch.size(); ++row) {
            int64_t *input = inputs.data_ptr<int64_t>() + row * longest;
            int64_t *target = targets.data_ptr<int64_t>() + row * longest;
            int64_t last = '\n';
            for (const char character : samples[microbatch[row]]) {
                *input++ = last;
                *target++ = last = static_cast<unsigned char>(character);
            }
        }
        return {inputs, targets};
    }

    torch::nn::Embedding embed_;
    torch::nn::GRU gru_;
    torch::nn::Linear predict_;
    std::vector<Layer> layers_;
};

void train(const Options &options) {
    at::set_num_threads(1);  // one rank per core
    torch::manual_seed(1);   // the same parameters for any number of ranks
    Corpus corpus(options.data, kMaxBytes);
    odc::Context context = odc::Context::join();
    Model model(context);
    for (size_t minibatch = 0; minibatch < options.minibatches; ++minibatch) {
        const std::vector<std::string> samples = corpus.take(options.paragraphs);
        std::vector<uint64_t> lengths;
        for (const std::string &sample : samples) {
            lengths.push_back(sample.size());
        }
        const odc::Plan plan = odc::plan(lengths, context.size(), kMaxBytes, odc::Policy::LbMini, kCost);
        std::array<double, 2> totals{};  // loss and bytes
        context.publish();
        for (const auto &microbatch : plan.ranks[static_cast<size_t>(context.rank())]) {
            totals[0] += model.train(samples, microbatch);
            for (const size_t sample : microbatch) {
                totals[1] += static_cast<double>(samples[sample].size());
            }
        }
        context.sync_reduce(totals, odc::Reduction::Sum);
        for (Layer &layer : model.layers()) {
            layer.step(static_cast<double>(minibatch + 1), totals[1]);
        }
        if (context.rank() == 0) {
            report_minibatch(minibatch, totals[0], totals[1], plan);
        }
    }
    context.publish();
    if (context.rank() == 0) {
        for (Layer &layer : model.layers()) {
            layer.report();
        }
    }
    context.sync();
}

}  // namespace

int main(int argc, char **argv) try { train(Options(argc, argv)); } catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}

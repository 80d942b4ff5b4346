// SPDX-License-Identifier: Apache-2.0
// The options of `odc replay` and the models it knows: a model is its layers, their elements and the cost of samples.
#pragma once

#include "cli/plan_options.h"
#include "replay/device_speeds.h"

#include <cstdint>
#include <string>
#include <vector>

namespace odc_tool {

struct Model {
    std::string name;
    int layers;
    uint64_t layer_elements;
    Cost cost;
};

// The elements of a layer as run.
uint64_t scaled_layer(const Model &model, uint64_t scale);

// "1.5b", "7b", "14b" or "32b". Throws Exit{2, ...} for anything else.
Model find_model(const std::string &name);

struct ReplaySettings {
    std::string lengths;  // a file of lengths, or
    std::string corpus;   // a directory of text files; neither: the built-in lengths
    std::string model = "7b";
    std::string timeline;
    std::string trace;
    uint64_t max_tokens = 65536;
    // Divides the bytes. With 1/8192 a layer's gather takes some 3 % of its forward pass, as 7b's does on a GPU node: 466 MB at
    // 200 GB/s compared with 64 ms for 16k tokens; here 8 ranks share 10 GB/s, and time runs 47 times as fast.
    uint64_t scale = 8192;
    uint64_t seed = 1;
    int ranks = 0;      // to start on this host; 0: 8, or inside a job its ranks
    int minibatch = 8;  // samples per rank and minibatch
    int lookahead = 1;  // minibatches that are planned together, in two arms more
    WindowOptions window;
    double noise = 0;  // of the devices' speeds
    std::vector<SlowRank> slow;
    double claim = 0;     // share of the cost that ranks claim, in three arms more
    int minibatches = 0;  // 0: one pass over the lengths, at most kMostMinibatches
    double seconds = 90;  // emulated time of all arms together
    int32_t sum = 0;      // an odc_summation; 0: in the order of arrival
    bool prefetch = false;
    double compute = 1;       // with prefetch: as a multiple of the communication's time, which is measured first
    int hosts = 1;            // over which the ranks are divided, emulated if there are several
    double bandwidth = 25e9;  // of the link of each host and direction, in bits a second
    bool json = false;

    // Then tables show how far each arm is from the bound.
    bool uneven() const { return noise > 0 || !slow.empty() || claim > 0; }
};

constexpr int kMostMinibatches = 12;
constexpr size_t kWarmUp = 5;  // minibatches in which speeds are measured before they are used
constexpr int kDefaultRanks = 8;

}  // namespace odc_tool

// SPDX-License-Identifier: Apache-2.0
// The state of a rank of `odc replay` for all arms: the workload, the emulated model and the device.
#pragma once

#include "rank/context.h"
#include "replay/device.h"
#include "replay/links.h"
#include "replay/network.h"
#include "replay/record.h"
#include "replay/schedule.h"
#include "replay/settings.h"
#include "replay/shards.h"

#include <odc/odc.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace odc_tool {

// The ranks' contexts: as they are, once more without shards, and, once ReplayJob has joined them, on emulated hosts.
struct Contexts {
    Context all;
    Context barrier;
    Context flat;    // without a node cache
    Context cached;  // with one
    void abort(const char *message) const;
};

// Where an arm runs.
struct Stage {
    Stage(Models arm_models, std::unique_ptr<Network> joined, odc_context *barrier);
    // After a run.
    void check_gradients(const Gradient &total);

    const Models models;
    std::unique_ptr<Network> network;
    Device device;
};

struct ReplayJob {
    // Collective; throws Exit when the ranks' settings or lengths differ.
    ReplayJob(const ReplaySettings &settings, Contexts &contexts);

    // Reads the ranks' speeds as measured so far: before a minibatch's first arm, so that its arms know the same.
    void read_speeds();
    // Runs one minibatch by `arm`, as run number `number`, and checks every sum.
    RunRecord run(int32_t number, size_t minibatch, const Arm &arm, double ns_per_cost, Detail detail);
    // All ranks' records, on rank 0. Collective.
    std::vector<RankTotals> collect_totals();
    OwnMoments take_moments();  // since the last call

    const ReplaySettings &settings;
    odc_context *context;
    odc_context *barrier;
    size_t rank;
    Model model;
    Planner planner;
    Workload workload;
    std::vector<double> measured_speeds;
    uint64_t layer_elements;  // as run
    std::unique_ptr<Links> links;
    std::vector<std::unique_ptr<ModelShards>> models;  // by context
    std::vector<std::unique_ptr<Stage>> stages;        // by Crossing; on one host one

private:
    ModelShards *add_model(odc_context *in);
    void join_hosts(Contexts &contexts);
    Stage &stage_of(const Arm &arm);
};

}  // namespace odc_tool

// SPDX-License-Identifier: Apache-2.0
// The state of a rank of `odc replay` for all arms: the workload, the emulated model and the device.
#pragma once

#include "replay/device.h"
#include "replay/record.h"
#include "replay/schedule.h"
#include "replay/settings.h"
#include "replay/shards.h"

#include <odc/odc.h>

#include <cstdint>
#include <vector>

namespace odc_tool {

struct ReplayJob {
    // Collective; throws Exit when the ranks' settings or lengths differ. `barrier` is a context without shards.
    ReplayJob(const ReplaySettings &settings, odc_context *context, odc_context *barrier);

    // Reads the ranks' speeds as measured so far: before a minibatch's first arm, so that its arms know the same.
    void read_speeds();
    // Runs one minibatch by `arm`, as run number `number`, and checks every sum.
    RunRecord run(int32_t number, size_t minibatch, const Arm &arm, double ns_per_cost, Detail detail);
    // All ranks' records, on rank 0. Collective.
    std::vector<RankTotals> collect_totals();

    const ReplaySettings &settings;
    odc_context *context;
    odc_context *barrier;
    size_t rank;
    Model model;
    Planner planner;
    Workload workload;
    std::vector<double> measured_speeds;
    uint64_t layer_elements;  // as run
    ModelShards shards;
    Device device;
};

}  // namespace odc_tool

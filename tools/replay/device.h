// SPDX-License-Identifier: Apache-2.0
// One rank of `odc replay`: an emulated device, which computes by sleeping until absolute times, and the real communication
// that the rank's CPU does meanwhile.
#pragma once

#include "replay/network.h"
#include "replay/record.h"
#include "replay/schedule.h"
#include "replay/shards.h"

#include <odc/odc.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace odc_tool {

// What a rank computes in a minibatch: its microbatches of the plan, and the items that it claims.
struct DeviceWork {
    const std::vector<Microbatch> &planned;
    const std::vector<Microbatch> &items;
    double ns_per_cost;
    bool reported;  // by odc_report_cost: the library measures the rank's speed
};

// What an arm runs on: it gathers from the first model and adds to the last.
using Models = std::vector<ModelShards *>;

class Device {
public:
    // `barrier` is a context without shards: its sync is the barrier of the collective schedule.
    Device(const Models &models, Network &network, odc_context *barrier);

    // Runs microbatches, each forward and backward through all layers, and ends the minibatch. While layer l computes, layer
    // l+1 is gathered and layer l-1's gradients are added, in the collective and in the odc schedule, as in FSDP; so a rank claims
    // the next item, whose first layer it gathers, when it begins to compute the last layer of the one before. In the schedules
    // of --prefetch, where nothing is claimed, one thread computes and communicates: waiting, each call returns when it is
    // done; prefetching, calls are started before a layer's compute and waited for after it.
    RunRecord run(int32_t number, Schedule schedule, const DeviceWork &work, Detail detail);

    // Returns the events of the runs since the last call.
    std::vector<Event> take_events() { return std::exchange(events_, {}); }

private:
    struct Step {
        Kind kind;  // Forward or Backward
        int32_t microbatch;
        int32_t layer;
        int32_t item = kPlanned;
        double duration_ns;
        uint32_t gradient;  // of a Backward step
    };

    void add_steps(const Microbatch &microbatch, double ns_per_cost, int32_t item);
    // Claims an item if all known steps have begun.
    bool has_step(size_t step, const DeviceWork &work);
    RunRecord summary(int64_t duration_ns) const;
    void run_steps(const DeviceWork &work);
    void run_ahead(const DeviceWork &work);
    void run_waiting();
    void run_prefetching();
    void compute(const Step &step);
    void fetch(const Step &step, size_t buffer);
    void send_gradient(const Step &step);
    // In the collective schedule no rank's communication begins before all ranks have come to it.
    void meet(const Step &step);
    void record(Kind kind, const Step &step, int64_t begin_ns, int64_t end_ns);

    const Models &models_;
    ModelShards &gathered_;
    ModelShards &added_;
    Network &network_;
    odc_context *barrier_;
    std::vector<Event> events_;
    std::vector<Step> steps_;  // of this run
    double cost_ = 0;          // of their microbatches
    Schedule schedule_ = Schedule::Odc;
    Detail detail_ = Detail::Times;
    int32_t number_ = 0;
    int64_t origin_ns_ = 0;
    int64_t added_ns_ = 0;  // when the last gradient has crossed
};

}  // namespace odc_tool

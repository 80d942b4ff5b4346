// SPDX-License-Identifier: Apache-2.0
// One rank of `odc replay`: an emulated device, which computes by sleeping until absolute times, and the real communication
// that the rank's CPU does meanwhile.
#pragma once

#include "replay/record.h"
#include "replay/schedule.h"
#include "replay/shards.h"

#include <odc/odc.h>

#include <cstdint>
#include <vector>

namespace odc_tool {

enum class Recording { Times, Events };

class Device {
public:
    // `barrier` is a context without shards: its sync is the barrier of the collective schedule.
    Device(ModelShards &shards, odc_context *context, odc_context *barrier);

    // Runs `microbatches`, each forward and backward through all layers, and ends the minibatch. While layer l computes, layer
    // l+1 is gathered and layer l-1's gradients are added, in the collective and in the odc schedule, as in FSDP. In those of
    // --prefetch one thread computes and communicates: waiting, each call returns when it is done; prefetching, calls are
    // started before a layer's compute and waited for after it.
    RunRecord run(int32_t number, Schedule schedule, const std::vector<Microbatch> &microbatches, double ns_per_cost,
                  Recording recording);

    const std::vector<Event> &events() const { return events_; }

private:
    struct Step {
        Kind kind;  // Forward or Backward
        int32_t microbatch;
        int32_t layer;
        double duration_ns;
        uint32_t gradient;  // of a Backward step
    };

    std::vector<Step> make_steps(const std::vector<Microbatch> &microbatches, double ns_per_cost) const;
    int64_t run_steps(const std::vector<Step> &steps);
    void run_ahead(const std::vector<Step> &steps);
    void run_waiting(const std::vector<Step> &steps);
    void run_prefetching(const std::vector<Step> &steps);
    void compute(const Step &step);
    void fetch(const Step &step, size_t buffer);
    void send_gradient(const Step &step);
    // In the collective schedule no rank's communication begins before all ranks have come to it.
    void meet(const Step &step);
    void record(Kind kind, const Step &step, int64_t begin_ns, int64_t end_ns);

    ModelShards &shards_;
    odc_context *context_;
    odc_context *barrier_;
    std::vector<Event> events_;
    Schedule schedule_ = Schedule::Odc;
    Recording recording_ = Recording::Times;
    int32_t number_ = 0;
    int64_t origin_ns_ = 0;
};

}  // namespace odc_tool

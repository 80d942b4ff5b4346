// SPDX-License-Identifier: Apache-2.0
#include "memory/control_block.h"

#include <cstring>

#include "base/error.h"
#include "base/futex.h"

namespace odc {

const char *call_name(Call call) {
    switch (call) {
        case Call::None: return "odc_init";
        case Call::RegisterShard: return "odc_register_shard";
        case Call::ReleaseShard: return "odc_release_shard";
        case Call::Publish: return "odc_publish";
        case Call::Gather: return "odc_gather";
        case Call::ScatterAdd: return "odc_scatter_add";
        case Call::Wait: return "odc_wait";
        case Call::Sync: return "odc_minibatch_sync";
        case Call::AllReduce: return "odc_all_reduce";
        case Call::Shutdown: return "odc_shutdown";
        case Call::Abort: return "odc_abort";
        case Call::Claim: return "odc_claim";
        case Call::ReportCost: return "odc_report_cost";
        case Call::GetSpeeds: return "odc_get_speeds";
        case Call::Finish: return "odc_finish";
    }
    return "an unknown call";
}

void record_failure(ControlBlock &block, odc_status status, const char *text) {
    block.error_status = status;
    put(block.error_text, text);
    block.state.store(RankState::Failed, std::memory_order_release);
}

void record_departure(ControlBlock &block, int rank, const char *why) {
    if (block.state.load(std::memory_order_relaxed) != RankState::Failed) {
        record_failure(block, ODC_ERROR_PEER_LOST, formatted("rank {} left odc_init: {}", rank, why).c_str());
    }
}

void ring(Doorbell &doorbell) {
    // Sequentially consistent, as is the waiter, which counts itself, checks its condition again and sleeps.
    doorbell.rung.fetch_add(1);
    if (doorbell.waiters.load() != 0) {
        futex_wake(doorbell.rung);
    }
}

}  // namespace odc

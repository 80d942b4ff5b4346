// SPDX-License-Identifier: Apache-2.0
// `odc replay --prefetch`: how much of the communication is hidden by compute that takes as long. In each rank one thread
// computes (sleeps) and communicates, with odc + lb-mini; the arms differ only in when they wait for a call.
#pragma once

#include "replay/job.h"

namespace odc_tool {

// Runs all arms on all minibatches; rank 0 prints. Collective.
void replay_prefetch(ReplayJob &job);

}  // namespace odc_tool

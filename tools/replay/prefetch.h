// SPDX-License-Identifier: Apache-2.0
// `odc replay --prefetch`: how much of the communication hides behind compute that is as long as it. One thread a rank
// computes (sleeps) and communicates, by odc + lb-mini; the arms differ only in when they wait for a call.
#pragma once

#include "replay/job.h"

namespace odc_tool {

// Runs all arms on all minibatches; rank 0 prints. Collective.
void replay_prefetch(ReplayJob &job);

}  // namespace odc_tool

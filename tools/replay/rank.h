// SPDX-License-Identifier: Apache-2.0
// One rank of `odc replay`, from odc_init to the report that rank 0 prints.
#pragma once

#include "replay/settings.h"

namespace odc_tool {

// Joins the job that the environment names. Throws Exit; then the other ranks' waits have ended, too.
void replay_rank(const ReplaySettings &settings);

}  // namespace odc_tool

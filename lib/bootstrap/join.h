// SPDX-License-Identifier: Apache-2.0
// How ranks find each other: from the configuration and the environment to the peers' shared memory.
#pragma once

#include <odc/odc.h>

namespace odc {

struct Membership;
class Log;

// The log outlives the membership.
Membership join(const odc_config &config, Log &log);

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// Host memory of the same host: the caller's thread copies from and adds into the owner's mapped slice itself.
#pragma once

#include "transport.h"

namespace odc {

extern const Transport kShm;

}  // namespace odc

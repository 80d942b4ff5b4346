// SPDX-License-Identifier: Apache-2.0
// Host memory of the same host: the caller's thread copies from and adds into the owner's mapped slice itself.
#pragma once

#include "transport/transport.h"

namespace odc {

// Empty: it works on this machine. Else why not.
std::string why_not_shm();
// To any rank of this host.
std::unique_ptr<Endpoint> shm_path(int my_rank);

}  // namespace odc

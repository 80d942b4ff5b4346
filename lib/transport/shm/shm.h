// SPDX-License-Identifier: Apache-2.0
// Host memory of this host: the caller's thread copies from and adds into the owner's mapped slice.
#pragma once

#include "transport/transport.h"

namespace odc {

// Why shared memory does not work on this machine; empty if it does.
std::string why_not_shm();
std::unique_ptr<Endpoint> connect_shm(const EndpointParams &params);

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// Host memory of the same host, by way of a pipe: slow, and no more than an example.
#pragma once

#include "transport/transport.h"

namespace odc {

// Empty: it works on this machine. Else why not.
std::string why_not_pipe();
std::unique_ptr<Endpoint> connect_pipe(const EndpointParams &params);

}  // namespace odc

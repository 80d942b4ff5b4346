// SPDX-License-Identifier: Apache-2.0
#include "transport/cuda/peer_access.h"

#include "transport/cuda/driver.h"

namespace odc {

std::string why_not_cuda() { return cuda::why_not_driver(); }

}  // namespace odc

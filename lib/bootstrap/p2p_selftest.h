// SPDX-License-Identifier: Apache-2.0
// Whether the GPUs of a host's ranks can really read each other's memory and add to it: the driver may say so where an
// IOMMU, PCIe access control or missing atomics spoil it, and a wrong sum is never seen. So each pair tries: a pattern is
// read, and both sides add to the same words at the same time.
#pragma once

#include "base/deadline.h"
#include "transport/cuda/peer_access.h"

#include <vector>

namespace odc {

struct Membership;

// By rank; of ranks of other hosts nothing is said. All ranks of the host that have a GPU call it, in odc_init. Throws
// ODC_ERROR_RENDEZVOUS when one does not come along.
std::vector<PeerAccess> run_p2p_selftest(Membership &membership, const Deadline &deadline);

}  // namespace odc

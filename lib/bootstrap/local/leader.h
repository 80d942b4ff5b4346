// SPDX-License-Identifier: Apache-2.0
// The leader's side of the local rendezvous (rendezvous.h): it listens, admits each rank of its host once, and hands all to all.
#pragma once

#include "base/deadline.h"
#include "bootstrap/local/group.h"

#include <vector>

namespace odc {

std::vector<LocalPeer> lead(const LocalGroup &group, const PeerHandles &mine, const Deadline &deadline);

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// The ranks of one host meet at an abstract Unix socket: their leader listens, the others come, and each is handed every
// other's shared memory and a pidfd, by which its death will be seen even while its children keep its sockets open.
#pragma once

#include "base/deadline.h"
#include "bootstrap/local/group.h"

#include <vector>

namespace odc {

// All of the group in order, this rank included. Under a name given by hand a rank of an earlier start that never found
// its leader cannot be told from a late rank of this one; who has found its leader ends with it and joins no other.
// Throws ODC_ERROR_RENDEZVOUS, on all ranks that have come, when a rank is missing at the
// deadline (the earliest of theirs), dies, has another's number or another size in mind.
std::vector<LocalPeer> join_local_group(const LocalGroup &group, const PeerHandles &mine, const Deadline &deadline);

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// The ranks of one host meet at an abstract Unix socket: rank 0 listens, the others come, and each is handed every
// other's shared memory and a pidfd, by which its death will be seen even while its children keep its sockets open.
#pragma once

#include "fd.h"
#include "patience.h"

#include <string>
#include <vector>

namespace odc {

struct Attendant {
    int pid = 0;
    Fd memory;  // of its arena
    Fd life;    // pidfd
};

// All ranks in order, this one included. `name` is what they share: the launcher's job id, a random word, or what the
// user calls the job. Under a name given by hand a rank of an earlier start that never found its rank 0 cannot be told
// from a late rank of this one; who has found its rank 0 ends with it and joins no other. `memory` stays the caller's.
// `ties` (by rank, or none) become readable when a rank gives up before it comes. Throws ODC_ERROR_RENDEZVOUS, on all
// ranks that have come, when a rank is missing at the deadline (the earliest of theirs), dies, has another's number or
// another size in mind.
std::vector<Attendant> meet(const std::string &name, int rank, int size, int memory, std::vector<Fd> ties,
                            const Patience &patience);

}  // namespace odc

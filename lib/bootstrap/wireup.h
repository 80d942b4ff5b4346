// SPDX-License-Identifier: Apache-2.0
// The last steps of joining: a route to every rank, and, if there are several hosts, the rounds in which their ranks
// tell each other their NICs and the endpoints that they have opened there.
#pragma once

#include "bootstrap/allgather.h"
#include "bootstrap/peer_info.h"

#include <vector>

namespace odc {

struct Membership;

// Fills in the routes, and the peers of other hosts. `infos`: of round 1. `allgather`: NULL where there was none.
void choose_routes(Membership &membership, const std::vector<IdentityInfo> &infos, Allgather *allgather,
                   const Deadline &deadline);

// Takes the place of the next round: tells the ranks of other hosts why this one does not come. Throws `error`, or the error
// of the rank that failed first.
[[noreturn]] void fail_everywhere(Allgather &allgather, const Error &error, const Deadline &deadline);

}  // namespace odc

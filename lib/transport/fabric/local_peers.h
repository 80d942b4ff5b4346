// SPDX-License-Identifier: Apache-2.0
// Watches the other ranks of this host, to report their deaths to other hosts.
#pragma once

#include "base/fd.h"
#include "base/program.h"
#include "memory/control_block.h"
#include "transport/fabric/types.h"

#include <vector>

namespace odc {

// A local peer that has ended without leaving or failing first.
struct EndedPeer {
    int rank;
    Ending how;
};

class LocalPeers {
public:
    // Their descriptors stay open, and owned by the caller.
    LocalPeers(int rank, std::vector<FabricLocalPeer> local_peers);

    // Readable if a peer has died.
    int wait_fd() const { return epoll_.get(); }
    // Returns each local peer that has died, once; a peer is returned here or by check_programs.
    std::vector<EndedPeer> dead();
    // Four times a second checks whether the next local peers by rank (at most kProgramsAtOnce) still run their programs, as
    // exec wakes nobody. Other local peers check the rest.
    std::vector<EndedPeer> check_programs(int64_t now_ns);

private:
    void add_ended(FabricLocalPeer &local_peer, Ending how, std::vector<EndedPeer> *all);

    std::vector<FabricLocalPeer> local_peers_;  // from the next rank on, wrapping around; `block` NULL: it has ended
    Fd epoll_;
    int64_t next_ns_ = 0;
};

}  // namespace odc

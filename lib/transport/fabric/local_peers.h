// SPDX-License-Identifier: Apache-2.0
// The other ranks of this host, whose ends only it can see at once.
#pragma once

#include "base/fd.h"
#include "base/program.h"
#include "memory/control_block.h"
#include "transport/fabric/types.h"

#include <vector>

namespace odc {

class LocalPeers {
public:
    // Their descriptors stay the caller's, and open.
    LocalPeers(int rank, std::vector<FabricLocalPeer> local_peers);

    // A local peer that has ended and neither left nor failed before.
    struct Ended {
        int rank;
        Ending how;
    };
    // Readable when `dead` has something to say.
    int bell() const { return ring_.get(); }
    // Each local peer once, here or in `gone`.
    std::vector<Ended> dead();
    // Asks four times a second whether the next local peers by rank, kProgramsAtOnce at most, still run their programs: exec rings
    // no bell. Their other local peers ask whom this one does not.
    std::vector<Ended> gone(int64_t now_ns);

private:
    void add_ended(FabricLocalPeer &local_peer, Ending how, std::vector<Ended> *all);

    std::vector<FabricLocalPeer> local_peers_;  // from the next rank on, and round; `block` NULL: it has ended
    Fd ring_;                                   // an epoll
    int64_t next_ns_ = 0;
};

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// The other ranks of this host, whose ends only it can see at once.
#pragma once

#include "base/fd.h"
#include "base/program.h"
#include "memory/control_block.h"
#include "transport/fabric/types.h"

#include <vector>

namespace odc {

class Mates {
public:
    // Their descriptors stay the caller's, and open.
    Mates(int rank, std::vector<FabricMate> mates);

    // A mate that has ended and neither left nor failed before.
    struct Ended {
        int rank;
        Ending how;
    };
    // Readable when `dead` has something to say.
    int bell() const { return ring_.get(); }
    // Each mate once, here or in `gone`.
    std::vector<Ended> dead();
    // Asks four times a second whether the next mates by rank, kProgramsAtOnce at most, still run their programs: exec rings
    // no bell. Their other mates ask whom this one does not.
    std::vector<Ended> gone(int64_t now_ns);

private:
    void add_ended(FabricMate &mate, Ending how, std::vector<Ended> *all);

    std::vector<FabricMate> mates_;  // from the next rank on, and round; `block` NULL: it has ended
    Fd ring_;                        // an epoll
    int64_t next_ns_ = 0;
};

}  // namespace odc

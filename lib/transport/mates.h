// SPDX-License-Identifier: Apache-2.0
// The other ranks of this host, whose deaths only it can see at once.
#pragma once

#include "fd.h"
#include "rank_block.h"
#include "transport/fabric.h"

#include <vector>

namespace odc {

class Mates {
public:
    // Their pidfds stay the caller's, and open.
    explicit Mates(std::vector<FabricMate> mates);

    // Readable when `dead` has something to say.
    int bell() const { return ring_.get(); }
    // Those that have ended and neither left nor failed before; each once.
    std::vector<int> dead();

private:
    std::vector<FabricMate> mates_;
    Fd ring_;  // an epoll
};

}  // namespace odc

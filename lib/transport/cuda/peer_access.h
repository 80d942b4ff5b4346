// SPDX-License-Identifier: Apache-2.0
// Whether GPUs of this host can access each other's memory, and the reasons.
#pragma once

#include <string>

namespace odc {

// Why this process cannot use CUDA; empty if it can.
std::string why_not_cuda();

// Whether one GPU can read and add to another's memory.
struct PeerAccess {
    std::string why;             // by what, if it can
    std::string why_not;         // empty if it can
    bool needs_scalars = false;  // it adds element by element, as the pair has no vector reductions
};

}  // namespace odc

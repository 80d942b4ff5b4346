// SPDX-License-Identifier: Apache-2.0
// What GPUs of this host can do for each other, in words.
#pragma once

#include <string>

namespace odc {

// Empty: there is a GPU here that can be used. Else why not.
std::string why_not_cuda();

// Whether a GPU's memory can be read and added to from another one's: `why` it can, or `why_not`.
struct PeerAccess {
    std::string why;
    std::string why_not;  // empty: it can
};

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// What the log says of a rank's routes.
#pragma once

#include <string>

namespace odc {

struct Membership;

std::string counted(size_t count, const std::string &noun);  // "1 rank", "2 ranks"

// One line for all peers of a kind, and at level debug one for each with the reasons.
void log_routes(const Membership &membership);

}  // namespace odc

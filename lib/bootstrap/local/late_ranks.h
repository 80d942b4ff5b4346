// SPDX-License-Identifier: Apache-2.0
// Tells ranks that come to odc_init late why the ranks of this host did not meet.
#pragma once

#include "base/acceptor.h"
#include "base/deadline.h"

#include <set>
#include <string>

namespace odc {

// Sends `why` to every process of this user that connects, until each rank in `absent` has, the time is over, or the
// caller's `interrupted` says stop. Throws nothing: the caller already has an error to report.
void tell_late_ranks(Acceptor &acceptor, const std::string &why, std::set<int> absent, const Deadline &deadline);

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// Tells ranks that come to odc_init late why the ranks of this host did not meet.
#pragma once

#include "base/deadline.h"
#include "base/fd.h"
#include "bootstrap/local/message.h"

#include <set>
#include <string>

namespace odc {

constexpr int64_t kFarewellNs = 2'000'000'000;  // for late ranks to come

// The message that ends the meeting of whoever reads it.
Message farewell_message(int rank, int size, const std::string &why);

// Sends `words` to every process of this user that connects, until each rank in `absent` has, the time is over, or the
// caller's `interrupted` says stop. Throws nothing: the caller already has an error to report.
void tell_late_ranks(const Fd &listener, const Message &words, std::set<int> absent, const Deadline &deadline);

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// Whether other processes live.
#pragma once

namespace odc {

// Whether a pidfd's process has ended, or a connection on which nothing is due was closed or has data; false for -1.
bool dead(int pidfd);
// Whether the process has ended; false for 0, as which one of another pid namespace shows.
bool gone(int pid);

}  // namespace odc

// SPDX-License-Identifier: Apache-2.0
// Whether other processes live.
#pragma once

namespace odc {

// Whether a pidfd's process has ended, or a silent connection; not for -1.
bool dead(int pidfd);
// A process of another pid namespace shows as 0: then nothing is known.
bool gone(int pid);

}  // namespace odc

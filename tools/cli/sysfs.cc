// SPDX-License-Identifier: Apache-2.0
#include "cli/sysfs.h"

#include <unistd.h>
#include <cstdlib>

namespace odc_tool {

void hide_missing_sysfs() {
    if (access("/sys/devices/system/cpu", F_OK) != 0) {
        setenv("HWLOC_HIDE_ERRORS", "2", 0);
    }
}

}  // namespace odc_tool

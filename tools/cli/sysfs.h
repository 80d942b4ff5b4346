// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace odc_tool {

// For the verbs that only show the machine: where there is no sysfs, as in some containers, hwloc would print a warning of its
// own, and odc shows by itself how little is known. Before the first look at the machine, with no other thread.
void hide_missing_sysfs();

}  // namespace odc_tool

// SPDX-License-Identifier: Apache-2.0
// An SVG picture of the first minibatches of `odc replay`: what each rank's device does when, with the collective schedule
// above ODC on one time axis.
#pragma once

#include "replay/report.h"

#include <string>
#include <vector>

namespace odc_tool {

// Throws Exit{1, ...} when the file cannot be written.
void write_timeline(const std::string &path, const Report &report, const RunRecords &records, const Moments &moments);

}  // namespace odc_tool

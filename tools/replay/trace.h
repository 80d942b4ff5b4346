// SPDX-License-Identifier: Apache-2.0
// The first minibatches of `odc replay` as a trace for Perfetto and chrome://tracing: a process per arm, and for each rank a
// track of its device and one of its communication.
#pragma once

#include "replay/report.h"

#include <string>
#include <vector>

namespace odc_tool {

// Throws Exit{1, ...} when the file cannot be written.
void write_trace(const std::string &path, const Report &report, const RunRecords &records, const Moments &moments);

}  // namespace odc_tool

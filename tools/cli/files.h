// SPDX-License-Identifier: Apache-2.0
// Files that the command line names for output. Both throw Exit{1, ...} for what cannot be written.
#pragma once

#include <string>

namespace odc_tool {

void write_file(const std::string &path, const std::string &text);
// Leaves what is in it.
void check_writable(const std::string &path);

}  // namespace odc_tool

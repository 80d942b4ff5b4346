// SPDX-License-Identifier: Apache-2.0
// Output files named on the command line. Both functions throw Exit{1, ...} for a file that cannot be written.
#pragma once

#include <string>

namespace odc_tool {

void write_file(const std::string &path, const std::string &text);
// Keeps the file's contents.
void check_writable(const std::string &path);

}  // namespace odc_tool
